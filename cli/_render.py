"""What people see. The only file that knows rich."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rigl_compress.pipeline.train import progress as training_progress

if TYPE_CHECKING:
    from rigl_compress.exporters.export import ExportedModel
    from rigl_compress.pipeline.bench.report import CompressionReport
    from rigl_compress.pipeline.bench.stage import Listener
    from rigl_compress.pipeline.compare.stage import Listeners

_out = Console(highlight=False, soft_wrap=True)
_tables = Console(highlight=False, width=1000)  # rich cuts off what does not fit; a terminal breaks the line
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Say something beside the result: on stderr, so that what is printed can be piped."""
    _err.print(text, style="dim", markup=False)


def json_result(content: Any) -> None:
    """Print JSON on stdout."""
    _out.out(json.dumps(content, indent=2, ensure_ascii=False))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column to the left, the others to the right."""
    grid = Table(title=title, title_justify="left", title_style="bold", header_style="bold", pad_edge=False, box=None)
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    _tables.print(grid)


def text(*lines: str) -> None:
    """Print lines as they are."""
    for line in lines:
        _out.print(line, markup=False)


@contextmanager
def bar(title: str, *columns: ProgressColumn) -> Iterator[tuple[Progress, Any]]:
    """Show a bar on a terminal; elsewhere be silent."""
    shown = (TextColumn("[bold]{task.description}"), BarColumn(bar_width=24), *columns, TimeElapsedColumn())
    with Progress(
        *shown, TimeRemainingColumn(), console=_err, disable=not _err.is_terminal, transient=True
    ) as progress:
        yield progress, progress.add_task(title, total=None, facts="")


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
    """Show training and benchmarks in one bar: a terminal has room for one at a time."""
    with bar(title, TextColumn("{task.fields[facts]}")) as (progress, task):

        def trained(now: training_progress.Progress) -> None:
            progress.update(task, total=now.iterations, completed=now.iteration, facts=_facts(now))

        def benched(what: str, done: int, total: int) -> None:
            progress.update(task, total=total, completed=done, facts=what)

        yield trained, benched


def _facts(now: training_progress.Progress) -> str:
    """Write what is known of a training run at a moment."""
    loss = [] if now.loss is None else [f"loss {now.loss:.4f}"]
    epoch, *quality = _few_facts(now)
    return " · ".join([epoch, *loss, *quality, f"sparsity {now.sparsity:.1%}", f"changed {now.changed}"])


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

    with bar("comparison", TextColumn("{task.fields[facts]}")) as (progress, all_of_them):
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
    from rigl_compress.pipeline.train.metrics import metric_of

    alive = content.get("alive", {})
    metric = metric_of(content)
    final, best = map(metric.show, metric.final_and_best(content))
    flops = content["inference_flops"]
    rows = [
        (f"{metric.title}, final (best)", f"{final} ({best})"),
        ("sparsity", f"{content['sparsity']:.2%}"),
        ("inference FLOPs", f"{flops['sparse']:,.0f} of {flops['dense']:,.0f} dense"),
    ]
    if alive:
        size = f"{alive['kflops']:.1f} KFLOPs, {alive['bitmask_bytes']:,.0f} bytes (paper's bit-mask convention)"
        rows.append(("without dead neurons", f"{alive['architecture']}, {size}"))
    train_cost = ", ".join(f"{value:,.1f} ({name})" for name, value in content["training_gflops"].items())
    rows += [("training GFLOPs", train_cost), ("time", f"{content['seconds']:.0f} s"), ("data", content["data"])]
    text(f"{content['recipe']}, {content['method']}, seed {content['seed']} → {folder}")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        text(f"  {name:<{width}}  {value}")


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
        (row.name, "×".join(map(str, row.shape)), f"{row.total - row.nonzeros:,}", f"{row.sparsity:.2%}", row.encoding)
        for row in model.tensors
    ]
    sizes = [f"{row.bytes:,}" for row in model.tensors]
    columns = ("tensor", "shape", "zeros", "sparsity", "encoding", "bytes")
    table("", columns, [(*row, size) for row, size in zip(rows, sizes, strict=True)])
    text("", f"{model.path}: {model.bytes:,} bytes, opset {model.opset}")
    for name, value in model.metadata.items():
        if name not in ("format", "pruned_shapes"):  # the table shows the shapes in the file
            text(f"  {name:<14} {value}")
