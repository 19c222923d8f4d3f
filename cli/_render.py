"""Everything that is printed. The only file that imports rich."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from rigl_compress.cli._text import printable, printable_json
from rigl_compress.core.wording import listed, percent
from rigl_compress.pipeline.train import progress as training_progress

if TYPE_CHECKING:
    from rigl_compress.experiments.scheduler import Listeners
    from rigl_compress.exporters.onnx_export import ExportedModel
    from rigl_compress.pipeline.bench.bench_report import CompressionReport
    from rigl_compress.pipeline.bench.stage import Listener
    from rigl_compress.pipeline.bench.training_course import TrainingCourse
    from rigl_compress.pipeline.recipe import Recipe

# No markup and no emoji: names of files, rows and layers may contain [brackets] and :colons:.
_out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
# Rich truncates what does not fit; a terminal wraps it.
_tables = Console(highlight=False, width=1000, markup=False, emoji=False)
UNKNOWN = "not counted"  # a warning gives the reason
_err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)


def note(text: str) -> None:
    """Print a remark on stderr, so that the result on stdout can be piped."""
    _err.print(printable(text), style="dim")


def json_result(content: Any) -> None:
    """Print JSON on stdout."""
    from rigl_compress.core.artifacts import json_text

    _out.out(printable_json(json_text(content, indent=2)))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column left-aligned, the others right-aligned."""
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
    """Show a progress bar on a terminal only. If space is short, the facts are truncated, not the bar and the time."""
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
    """Show the progress of training: epoch, loss, error, sparsity, changed connections, time left."""
    with running(title) as (listen, _):
        yield listen


@contextmanager
def bench_listener() -> Iterator["Listener"]:
    """Show the progress of a benchmark."""
    with running("bench") as (_, listen):
        yield listen


@contextmanager
def running(title: str) -> Iterator[tuple[training_progress.Listener, "Listener"]]:
    """Show training and benchmarks in one bar; without a terminal, print one line per epoch."""
    with bar(title) as (progress, task):

        def trained(now: training_progress.Progress) -> None:
            progress.update(task, total=now.iterations, completed=now.iteration, facts=_facts(now))
            if not _err.is_terminal and now.ends_epoch:
                note(f"{title}: {_facts(now)}")

        def benched(what: str, done: int, total: int) -> None:
            progress.update(task, total=total, completed=done, facts=printable(what))

        yield trained, benched


@contextmanager
def layer_listener(title: str) -> Iterator["Listener"]:
    """Show progress layer by layer; elsewhere in ten lines, with seconds so far and left."""
    began, shown = perf_counter(), set[tuple[str, int]]()
    with bar(title) as (progress, task):

        def listen(what: str, done: int, total: int) -> None:
            nonlocal began
            progress.update(task, total=total, completed=done, facts=printable(what))
            key = what.split()[0], 10 * done // max(1, total)
            if not done:  # layers are gone through more than once
                began = perf_counter()
                shown.clear()
            elif not _err.is_terminal and key not in shown and key[1]:
                shown.add(key)
                spent = perf_counter() - began
                note(f"{what}, {done} of {total}, {spent:.0f} s, about {spent * (total - done) / done:.0f} s left")

        yield listen


def _facts(now: training_progress.Progress) -> str:
    """Format the current state of a training run."""
    losses = {"loss": now.loss, "distillation": now.distillation}
    loss = [f"{name} {value:.4f}" for name, value in losses.items() if value is not None]
    return " · ".join([*_few_facts(now), *loss, f"sparsity {percent(now.sparsity, 1)}", f"changed {now.changed}"])


def _few_facts(now: training_progress.Progress) -> list[str]:
    """Format the epoch and, if known, the metric: short enough to show several runs."""
    from rigl_compress.pipeline.metrics import METRICS

    metric = METRICS[now.metric]
    known = now.value is not None and now.best is not None
    quality = [f"{metric.title} {metric.show(now.value or 0)} (best {metric.show(now.best or 0)})"] if known else []
    return [f"epoch {now.epoch}/{now.epochs}", *quality]


@contextmanager
def watching(total: int) -> Iterator["Listeners"]:
    """Show the progress of an experiment: on a terminal a bar for each running trial, elsewhere ten lines for each."""
    from rigl_compress.experiments.scheduler import Listeners
    from rigl_compress.experiments.trial_source import Outcome
    from rigl_compress.experiments.trials import Trial

    with bar("experiment") as (progress, overall):
        progress.update(overall, total=total)
        tasks: dict[Any, Any] = {}
        tenths: dict[Any, int] = {}
        ends: list[str] = []

        def started(trial: Trial) -> None:
            tasks[trial.key] = progress.add_task(printable(trial.name), total=None, facts="")

        def progressed(trial: Trial, now: training_progress.Progress) -> None:
            facts = " · ".join(_few_facts(now))
            progress.update(tasks[trial.key], total=now.iterations, completed=now.iteration, facts=facts)
            tenth = 10 * now.iteration // now.iterations
            if not _err.is_terminal and tenth > tenths.get(trial.key, 0) and tenth < 10:
                note(f"{trial.name}: {facts}")
            tenths[trial.key] = tenth

        def finished(outcome: Outcome) -> None:
            if outcome.trial.key in tasks:
                progress.remove_task(tasks.pop(outcome.trial.key))
            ends.append(outcome.trial.name)
            progress.update(overall, completed=len(ends), facts=f"{len(ends)} of {total} runs")
            note(f"[{len(ends)}/{total}] {outcome}")

        def benched(what: str, done: int, of: int) -> None:
            progress.update(overall, total=of, completed=done, facts=printable(f"bench, {what}"))

        yield Listeners(started, progressed, finished, benched)


def result(folder: Path, content: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        json_result(content)
        return
    rows = _result_rows(content)
    text(f"{content['recipe']}, {content['method']}, seed {content['seed']} → {folder}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        text(f"  {name:<{width}}  {value}")


def _result_rows(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    from rigl_compress.pipeline.metrics import metric_of

    pruned = content.get("pruned")
    metric = metric_of(content)
    final, best = map(metric.show, metric.final_and_best(content))
    flops, training = content.get("inference_flops"), content.get("training_gflops")
    rows = [
        (f"{metric.title}, final (best)", f"{final} ({best})"),
        ("sparsity", percent(content["sparsity"])),
        *([("left dense", listed(content["left_dense"]))] if content.get("left_dense") else []),
        ("inference FLOPs", f"{flops['sparse']:,.0f} of {flops['dense']:,.0f} dense" if flops else UNKNOWN),
    ]
    if pruned:
        size = f"{pruned['kflops']:.1f} KFLOPs, {pruned['bitmask_bytes']:,.0f} bytes (paper's bit-mask convention)"
        rows.append(("without dead neurons", f"{pruned['architecture']}, {size}"))
    train_cost = ", ".join(f"{value:,.1f} ({name})" for name, value in (training or {}).items())
    seconds, data = f"{content['seconds']:.0f} s", content["data"]
    return [*rows, ("training GFLOPs", train_cost or UNKNOWN), ("time", seconds), ("data", data)]


def course(found: "TrainingCourse") -> None:
    """Print the course of a training: some of its epochs, and target and actual sparsity of each weight."""
    from rigl_compress.pipeline.bench.training_course import epochs_table, sparsity_line, weights_table

    text("", sparsity_line(found), "")
    for each in (epochs_table(found), weights_table(found)):
        if each.rows:
            table(each.title, each.columns, each.rows)
            text("")


def planned(recipe: "Recipe", folder: Path, *, as_json: bool) -> None:
    """Print the recipe that a dry run would train."""
    if as_json:
        from rigl_compress.core.dataclass_io import plain

        json_result({"run": str(folder), "recipe": plain(recipe)})
    else:
        text(f"# dry run, output folder: {folder}", recipe.to_toml().rstrip("\n"))


def stages(folder: Path, states: Mapping[str, str], *, as_json: bool) -> None:
    """Print the state of the stages of a run."""
    if as_json:
        json_result({"run": str(folder), "stages": states})
    else:
        text(*(f"{name}: {state}" for name, state in states.items()))


def runs(states: Mapping[Path, str], *, as_json: bool) -> None:
    """Print the runs of a sweep or a comparison with their states."""
    if as_json:
        json_result({"runs": [{"run": str(path), "state": state} for path, state in states.items()]})
    else:
        text(*(f"{path}: {state}" for path, state in states.items()))


def benched(report: "CompressionReport") -> None:
    """Print the tables of a benchmark."""
    from rigl_compress.pipeline.bench import bench_tables as tables

    for each in tables.all_tables(report):
        table(each.title, each.columns, each.rows)
        text("")
    text(*tables.described(report), *tables.uncounted(report))


def bench_warnings(report: "CompressionReport") -> None:
    """Print the warnings of a benchmark on stderr, also with --json."""
    for warning in report.warnings:
        note(f"warning: {warning}")


def exported(model: "ExportedModel") -> None:
    """Print the tensors and the metadata of an ONNX file."""
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
