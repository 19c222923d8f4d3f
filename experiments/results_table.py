"""Tables of an experiment: a row for each row of the spec, columns as the view needs them.

`sweep` shows training; `compare` shows the table of the paper's Appendix B with files, latency and spread over seeds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from rigl_compress.experiments.published_flops.structured_pruning import PRINTED, Printed
from rigl_compress.experiments.results import ExperimentResult, RowResult, by_section
from rigl_compress.pipeline.bench.bench_report import CompressionReport, Timing
from rigl_compress.pipeline.bench.bench_tables import TextTable, duration, three_digits, times
from rigl_compress.pipeline.run_pipeline import DENSE

NOTES = (
    "Mean ± standard deviation over the seeds; widths are means, rounded.",
    "Training by the convention of the paper's table; in parentheses: training the pruned network from scratch, with "
    "its active connections. A row that starts from another counts its own training only.",
    "Inference: a multiplication and an addition for each connection. Bytes, paper's count: four for each weight and "
    "bias, and a bit for each place of a sparse layer. On disk: the smallest ONNX file, everything included.",
    "Latency: median (95 % interval), batch 1, one thread, the compact file of the first seed, all rows in turns; in "
    "stock ONNX Runtime (onnxruntime) and in our session (sparse); and its ratio to the dense network, with all of its "
    "weights, in stock ONNX Runtime.",
    "Printed: the figures of the paper (Evci et al. 2020, Appendix B), not measured here; for SBP, L0 and VIB it has "
    "the best error only.",
)


def _nothing(_: object) -> str:
    return ""


@dataclass(frozen=True)
class Column:
    """A column: its heading, its cell for a row, for a row whose trials all failed, and for a row of the paper."""

    heading: str  # {error}: the metrics of the rows
    cell: Callable[[RowResult], str]
    failed: Callable[[RowResult], str] = _nothing
    printed: Callable[[Printed], str] = _nothing

    def of(self, row: RowResult) -> str:
        """Return the cell for a row."""
        return self.cell(row) if row.figures else self.failed(row)


def table(title: str, rows: Sequence[RowResult], labels: str, columns: Sequence[Column]) -> TextTable:
    """Build a table; `labels` heads the column of the rows' labels. Columns without any entry are left out."""
    error = " or ".join(dict.fromkeys(row.metric.heading for row in rows if row.results)) or rows[0].metric.heading
    headings = (labels, *(column.heading.format(error=error) for column in columns))
    lines = list(_lines(rows, columns))
    used = [place for place in range(len(headings)) if any(line[place] for line in lines)]
    return TextTable(
        title,
        tuple(headings[place] for place in used),
        tuple(tuple(line[place] for place in used) for line in lines),
    )


def _lines(rows: Sequence[RowResult], columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    papers: set[str] = set()
    for row in rows:
        yield row.row.label, *(column.of(row) for column in columns)
        printed = [column.printed(PRINTED[row.row.paper]) for column in columns] if row.row.paper else []
        if any(printed) and row.row.paper not in papers:
            papers.add(row.row.paper)
            yield f"{row.row.paper}, printed", *printed


def sweep_table(result: ExperimentResult, convention: str) -> TextTable:
    """Build the table of a sweep: mean ± standard deviation over the seeds of each setting."""

    def gflops(row: RowResult) -> str:
        counted = [each["training_gflops"] for each in row.results if each.get("training_gflops")]
        return spread([each[convention] for each in counted], 1)

    columns = (
        Column("seeds", _seeds, failed=lambda row: "pruned" if row.runs[0].pruned else "failed"),
        Column("{error}, final", _error("final"), failed=lambda row: row.runs[0].pruned or row.runs[0].failure),
        Column("{error}, best", _error("best")),
        Column("sparsity", lambda row: f"{mean(each['sparsity'] for each in row.results):.3f}"),
        Column("pruned", lambda row: row.architecture),
        Column("KFLOPs", lambda row: spread(_known(row, "kflops"), 1)),
        Column("bytes", lambda row: spread(_known(row, "bytes"), 0)),
        Column("train GFLOPs", gflops),
    )
    return table(f"{result.experiment.name}, training GFLOPs by {convention}", result.rows, "settings", columns)


def compare_tables(result: ExperimentResult) -> list[TextTable]:
    """Build the paper's table for every section."""
    return [
        table(section or result.experiment.name, rows, "method", _compare_columns(result.latencies.get(section)))
        for section, rows in by_section(result.rows).items()
    ]


def _compare_columns(latency: CompressionReport | None) -> tuple[Column, ...]:
    return (
        Column("final architecture", lambda row: row.architecture, lambda _: "failed", lambda each: each.architecture),
        Column("sparsity", _sparsity, printed=lambda each: f"{each.sparsity:.3f}"),
        Column("training GFLOPs", _training, printed=_printed_training),
        Column("inference KFLOPs", _cost("kflops", 1), printed=lambda each: f"{each.kflops:.1f}"),
        Column("bytes, paper's count", _cost("bytes", 0), printed=lambda each: f"{each.bytes:,}"),
        Column("bytes on disk", _cost("disk", 0)),
        Column("{error}, best (final)", _best_and_final, printed=_printed_error),
        *(column for backend in _backends(latency) for column in _latency_columns(latency, backend)),
        Column("seeds", _seeds, failed=_seeds),
    )


def _known(row: RowResult, figure: str) -> list[float]:
    """Return a figure of the trials for which it could be counted."""
    return [value for each in row.figures if (value := getattr(each, figure)) is not None]


def _seeds(row: RowResult) -> str:
    done, failed = len(row.figures), sum(1 for run in row.runs if run.failure)
    return f"{done} ({failed} failed)" if failed else f"{done}"


def _error(which: str) -> Callable[[RowResult], str]:
    return lambda row: spread(_known(row, which), row.metric.digits)


def _best_and_final(row: RowResult) -> str:
    return f"{_error('best')(row)} ({_error('final')(row)})"


def _printed_error(row: Printed) -> str:
    return f"{row.best:g}" + (f" ({row.final:g})" if row.final is not None else "")


def _sparsity(row: RowResult) -> str:
    known = _known(row, "sparsity")
    return f"{mean(known):.3f}" if known else ""


def _training(row: RowResult) -> str:
    own, found = _known(row, "gflops"), _known(row, "found_gflops")
    return " ".join([*([_gflops(mean(own))] if own else []), *([f"({_gflops(mean(found))})"] if found else [])])


def _printed_training(row: Printed) -> str:
    return f"{row.gflops:,.1f}" + (f" ({row.found_gflops:,.1f})" if row.found_gflops is not None else "")


def _gflops(value: float) -> str:
    """Format as the paper does, small values with three digits.

    >>> _gflops(482.0179), _gflops(0.01234)
    ('482.0', '0.0123')
    """
    return f"{value:,.1f}" if value >= 1 else three_digits(value)


def _cost(figure: str, digits: int) -> Callable[[RowResult], str]:
    """Return a cell with mean ± standard deviation; a figure that is the same for all seeds has none."""

    def cell(row: RowResult) -> str:
        values = _known(row, figure)
        return spread(values[:1] if len(set(values)) == 1 else values, digits)

    return cell


def spread(values: Sequence[float], digits: int) -> str:
    """Format mean ± sample standard deviation.

    >>> spread([1.0, 2.0, 3.0], 2), spread([1.5], 1), spread([], 1)
    ('2.00 ± 1.00', '1.5', '')
    """
    if not values:
        return ""
    middle = f"{mean(values):,.{digits}f}"
    return f"{middle} ± {stdev(values):,.{digits}f}" if len(values) > 1 else middle


def _backends(report: CompressionReport | None) -> list[str]:
    """Return the runtimes that were timed, in their order."""
    return list(dict.fromkeys(timing.candidate.backend for timing in report.timings)) if report else []


def _latency_columns(report: CompressionReport | None, backend: str) -> tuple[Column, Column]:
    """Return the columns of a runtime: the latency, and its ratio to that of the dense network."""
    return (
        Column(f"latency, {backend}", lambda row: _latency(row.row.label, backend, report)),
        Column(f"{backend}, of {DENSE}", lambda row: _ratio(row.row.label, backend, report)),
    )


def _timing(label: str, backend: str, report: CompressionReport | None) -> Timing | None:
    timings = report.timings if report else ()
    wanted = (label, backend)
    return next((each for each in timings if (each.candidate.label, each.candidate.backend) == wanted), None)


def _latency(label: str, backend: str, report: CompressionReport | None) -> str:
    timing = _timing(label, backend, report)
    if timing is None:
        return ""
    low, high = duration(timing.median.low), duration(timing.median.high)
    return f"{duration(timing.median.value)} ({low} to {high})"


def _ratio(label: str, backend: str, report: CompressionReport | None) -> str:
    timing = _timing(label, backend, report)
    ratio = report.ratio(timing) if report and timing else None
    return times(ratio) if ratio else ""


def remarks(result: ExperimentResult) -> list[str]:
    """Return the notes below the tables of `compare`: problems, what was measured, how it is counted."""
    printed = any(row.row.paper for row in result.rows)
    timed = [NOTES[3], *dense_lines(result.latencies)] if result.latencies else []
    return [*problem_lines(result.rows), *NOTES[:3], *timed, *(NOTES[4:] if printed else ())]


def dense_lines(latencies: Mapping[str, CompressionReport]) -> Iterator[str]:
    """Yield the latency of the dense network of each section."""
    for section, report in latencies.items():
        found = {backend: _latency(DENSE, backend, report) for backend in _backends(report)}
        timed = ", ".join(f"{time} in {backend}" for backend, time in found.items() if time)
        if timed:
            yield f"{f'{section}: ' if section else ''}the {DENSE} takes {timed}."


def problem_lines(rows: Sequence[RowResult]) -> list[str]:
    """List the trials that failed, or whose figures could not be counted, with the reasons."""
    return [f"{row.row.label}, seed {run.seed}: {run.problem}" for row in rows for run in row.runs if run.problem]
