"""What people see. The only file that knows rich."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from rigl_compress.cli._text import printable
from rigl_compress.models.wording import listed, percent
from rigl_compress.pipeline.train import progress as training_progress

if TYPE_CHECKING:
    from rigl_compress.exporters.export import ExportedModel
    from rigl_compress.pipeline.bench.report import CompressionReport
    from rigl_compress.pipeline.bench.stage import Listener
    from rigl_compress.pipeline.compare.stage import Listeners
    from rigl_compress.pipeline.recipe import Recipe

# No markup and no emoji: names of people's files, rows and layers may hold [brackets] and :colons:.
_out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
# Rich cuts off what does not fit; a terminal breaks the line.
_tables = Console(highlight=False, width=1000, markup=False, emoji=False)
UNKNOWN = "not counted"  # the warning says why
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def note(text: str) -> None:
    """Say something beside the result: on stderr, so that what is printed can be piped."""
    _err.print(printable(text), style="dim")


def json_result(content: Any) -> None:
    """Print JSON on stdout."""
    from rigl_compress.models.artifacts import json_text

    _out.out(json_text(content, indent=2))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, the others to the right."""
    grid = Table(
        title=printable(title), title_justify="left", title_style="bold", header_style="bold", pad_edge=False, box=None
    )
    for index, column in enumerate(columns):
        grid.add_column(printable(column), justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*map(printable, row))
    _tables.print(grid)


def text(*lines: str) -> None:
    """Print lines as they are."""
    for line in lines:
        _out.print(printable(line))


@contextmanager
def bar(title: str) -> Iterator[tuple[Progress, Any]]:
    """Show a bar on a terminal; elsewhere be silent. Where room is short, the facts are cut, not bar and time."""
    title_ = Column(max_width=28, no_wrap=True, overflow="ellipsis")
    facts = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    shown = (
        TextColumn("{task.description}", style="bold", markup=False, table_column=title_),
        BarColumn(bar_width=12 if _err.width < 100 else 24),
        TimeElapsedColumn(table_column=Column(min_width=7, no_wrap=True)),
        TimeRemainingColumn(table_column=Column(min_width=7, no_wrap=True)),
        TextColumn("{task.fields[facts]}", markup=False, table_column=facts),
    )
    with Progress(*shown, console=_err, disable=not _err.is_terminal, transient=True, expand=True) as progress:
        yield progress, progress.add_task(printable(title), total=None, facts="")


@contextmanager
def training(title: str) -> Iterator[training_progress.Listener]:
    """Show a training run: epoch, loss, error, sparsity, connections changed, time left."""
    with running(title) as (listen, _):
        yield listen


@contextmanager
def benching() -> Iterator["Listener"]:
    """Show which candidates are being timed, and how far they are."""
    with running("bench") as (_, listen):
        yield listen


@contextmanager
def running(title: str) -> Iterator[tuple[training_progress.Listener, "Listener"]]:
    """Show training and benchmarks in one bar; where there is no terminal, training says a line for each epoch."""
    with bar(title) as (progress, task):

        def trained(now: training_progress.Progress) -> None:
            progress.update(task, total=now.iterations, completed=now.iteration, facts=_facts(now))
            if not _err.is_terminal and now.ends_epoch:
                note(f"{title}: {_facts(now)}")

        def benched(what: str, done: int, total: int) -> None:
            progress.update(task, total=total, completed=done, facts=what)

        yield trained, benched


def _facts(now: training_progress.Progress) -> str:
    """Write what is known of a training run at a moment."""
    loss = [] if now.loss is None else [f"loss {now.loss:.4f}"]
    return " · ".join([*_few_facts(now), *loss, f"sparsity {percent(now.sparsity, 1)}", f"changed {now.changed}"])


def _few_facts(now: training_progress.Progress) -> list[str]:
    """Write the epoch, and how good it is if that is known: what there is room for beside other runs."""
    from rigl_compress.pipeline.train.metrics import METRICS

    metric = METRICS[now.metric]
    known = now.value is not None and now.best is not None
    quality = [f"{metric.title} {metric.show(now.value or 0)} (best {metric.show(now.best or 0)})"] if known else []
    return [f"epoch {now.epoch}/{now.epochs}", *quality]


@contextmanager
def watching(total: int) -> Iterator["Listeners"]:
    """Show many runs: on a terminal a line for each that runs; elsewhere a line at every tenth of it. Ends are told."""
    from rigl_compress.pipeline.compare.cells import Cell
    from rigl_compress.pipeline.compare.course import Outcome, Watcher
    from rigl_compress.pipeline.compare.stage import Listeners

    with bar("comparison") as (progress, all_of_them):
        progress.update(all_of_them, total=total)
        tasks: dict[Any, Any] = {}
        tenths: dict[Any, int] = {}
        ends: list[str] = []

        def begun(cell: Cell) -> None:
            tasks[cell.key] = progress.add_task(cell.name, total=None, facts="")

        def moved(cell: Cell, now: training_progress.Progress) -> None:
            facts = " · ".join(_few_facts(now))
            progress.update(tasks[cell.key], total=now.iterations, completed=now.iteration, facts=facts)
            tenth = 10 * now.iteration // now.iterations
            if not _err.is_terminal and tenth > tenths.get(cell.key, 0) and tenth < 10:
                note(f"{cell.name}: {facts}")
            tenths[cell.key] = tenth

        def ended(outcome: Outcome) -> None:
            if outcome.cell.key in tasks:
                progress.remove_task(tasks.pop(outcome.cell.key))
            ends.append(outcome.cell.name)
            progress.update(all_of_them, completed=len(ends), facts=f"{len(ends)} of {total} runs")
            note(f"[{len(ends)}/{total}] {outcome}")

        def benched(what: str, done: int, of: int) -> None:
            progress.update(all_of_them, total=of, completed=done, facts=f"bench, {what}")

        yield Listeners(Watcher(begun, moved, ended), benched)


def result(folder: Path, content: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what came out of a run."""
    if as_json:
        json_result(content)
        return
    rows = _result_rows(content)
    text(f"{content['recipe']}, {content['method']}, seed {content['seed']} → {folder}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        text(f"  {name:<{width}}  {value}")


def _result_rows(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    from rigl_compress.pipeline.train.metrics import metric_of

    alive = content.get("alive")
    metric = metric_of(content)
    final, best = map(metric.show, metric.final_and_best(content))
    flops, training = content.get("inference_flops"), content.get("training_gflops")
    rows = [
        (f"{metric.title}, final (best)", f"{final} ({best})"),
        ("sparsity", percent(content["sparsity"])),
        *([("left dense", listed(content["left_dense"]))] if content.get("left_dense") else []),
        ("inference FLOPs", f"{flops['sparse']:,.0f} of {flops['dense']:,.0f} dense" if flops else UNKNOWN),
    ]
    if alive:
        size = f"{alive['kflops']:.1f} KFLOPs, {alive['bitmask_bytes']:,.0f} bytes (paper's bit-mask convention)"
        rows.append(("without dead neurons", f"{alive['architecture']}, {size}"))
    train_cost = ", ".join(f"{value:,.1f} ({name})" for name, value in (training or {}).items())
    seconds, data = f"{content['seconds']:.0f} s", content["data"]
    return [*rows, ("training GFLOPs", train_cost or UNKNOWN), ("time", seconds), ("data", data)]


def planned(recipe: "Recipe", folder: Path, *, as_json: bool) -> None:
    """Print the run that would be trained."""
    if as_json:
        from rigl_compress.models.settings import plain

        json_result({"run": str(folder), "recipe": plain(recipe)})
    else:
        text(f"# would be trained in {folder}", recipe.to_toml().rstrip("\n"))


def stages(folder: Path, states: Mapping[str, str], *, as_json: bool) -> None:
    """Print what a run would do."""
    if as_json:
        json_result({"run": str(folder), "stages": states})
    else:
        text(*(f"{name}: {state}" for name, state in states.items()))


def runs(states: Mapping[Path, str], *, as_json: bool) -> None:
    """Print the runs that a sweep or a comparison would train, with what there is of each."""
    if as_json:
        json_result({"runs": [{"run": str(path), "state": state} for path, state in states.items()]})
    else:
        text(*(f"{path}: {state}" for path, state in states.items()))


def benched(report: "CompressionReport") -> None:
    """Print what a benchmark found."""
    from rigl_compress.pipeline.bench import tables

    shown = [tables.model_table(report), tables.timing_table(report)]
    for each in (*shown, *(tables.profile_table(label, rows) for label, rows in report.profiles.items())):
        table(each.title, each.columns, each.rows)
        text("")
    text(*tables.uncounted(report))


def bench_warnings(report: "CompressionReport") -> None:
    """Say on stderr what should be known about a benchmark, also where its figures go elsewhere."""
    for warning in report.warnings:
        note(f"warning: {warning}")


def exported(model: "ExportedModel") -> None:
    """Print what is in an ONNX file."""
    rows = [
        (row.name, "×".join(map(str, row.shape)), f"{row.total - row.nonzeros:,}", percent(row.sparsity), row.encoding)
        for row in model.tensors
    ]
    sizes = [f"{row.bytes:,}" for row in model.tensors]
    columns = ("tensor", "shape", "zeros", "sparsity", "encoding", "bytes")
    table("", columns, [(*row, size) for row, size in zip(rows, sizes, strict=True)])
    text("", f"{model.path}: {model.bytes:,} bytes, opset {model.opset}")
    for name, value in model.metadata.items():
        if name not in ("format", "pruned_shapes"):  # the table shows the shapes in the file
            text(f"  {name:<14} {value}")
