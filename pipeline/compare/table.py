"""The table of the paper's Appendix B, with what it does not have: files on disk, latency, spread over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from rigl_compress.pipeline.bench.report import CompressionReport
from rigl_compress.pipeline.bench.tables import TextTable, duration, three_digits, times
from rigl_compress.pipeline.compare.figures import RowFigures
from rigl_compress.pipeline.compare.latency import START
from rigl_compress.pipeline.paper.structured import PRINTED, Printed
from rigl_compress.pipeline.sweep import spread

COLUMNS = (
    *("method", "final architecture", "sparsity", "training GFLOPs", "inference KFLOPs", "bytes, paper's count"),
    *("bytes on disk", "{error}, best (final)", "latency", "of start network", "seeds"),
)
NOTES = (
    "Mean ± standard deviation over the seeds; widths are means, rounded.",
    "Training by the convention of the paper's table; in parenthesis: training what was found from scratch, with the "
    "connections it has. A row that starts from another counts its own training only.",
    "Inference: a multiplication and an addition for each connection. Bytes, paper's count: four for each weight and "
    "bias, and a bit for each place of a sparse layer. On disk: the smallest ONNX file, all included.",
    "Latency: median in stock ONNX Runtime (95 % interval), batch 1, one thread, the first seed's compact file, all "
    "rows in turns; and its ratio to the network that training started with, dense.",
    "Printed: the paper's figures (Evci et al. 2020, Appendix B), not ours; of SBP, L0 and VIB it knows the best error "
    "only.",
)


def tables(rows: Sequence[RowFigures], latencies: Mapping[str, CompressionReport], name: str) -> list[TextTable]:
    """Give a table for every section."""
    sections = dict.fromkeys(row.row.section for row in rows)
    return [
        _table([row for row in rows if row.row.section == section], latencies.get(section), section or name)
        for section in sections
    ]


def _table(rows: Sequence[RowFigures], latency: CompressionReport | None, title: str) -> TextTable:
    error = " or ".join(dict.fromkeys(row.metric.heading for row in rows))
    lines = list(_lines(rows, latency))
    used = [place for place in range(len(COLUMNS)) if any(line[place] for line in lines)]
    return TextTable(
        title,
        tuple(COLUMNS[place].format(error=error) for place in used),
        tuple(tuple(line[place] for place in used) for line in lines),
    )


def _lines(rows: Sequence[RowFigures], latency: CompressionReport | None) -> Iterator[tuple[str, ...]]:
    printed: set[str] = set()
    for row in rows:
        yield _line(row, latency)
        if row.row.paper and row.row.paper not in printed:
            printed.add(row.row.paper)
            yield printed_line(row.row.paper, PRINTED[row.row.paper])


def _line(row: RowFigures, latency: CompressionReport | None) -> tuple[str, ...]:
    runs, failed = row.runs, len(row.failures)
    if not runs:
        return row.row.label, "failed", *([""] * (len(COLUMNS) - 3)), f"0 ({failed} failed)"
    digits = row.metric.digits
    found = [run.found_gflops for run in runs if run.found_gflops is not None]
    return (
        row.row.label,
        row.architecture,
        f"{mean(run.sparsity for run in runs):.3f}",
        _gflops(mean(run.gflops for run in runs)) + (f" ({_gflops(mean(found))})" if found else ""),
        _spread([run.kflops for run in runs], 1),
        _spread([run.bytes for run in runs], 0),
        _spread([run.disk for run in runs if run.disk is not None], 0),
        f"{spread([run.best for run in runs], digits)} ({spread([run.final for run in runs], digits)})",
        *_times(row.row.label, latency),
        f"{len(runs)}" + (f" ({failed} failed)" if failed else ""),
    )


def _spread(values: Sequence[float], digits: int) -> str:
    """Write mean ± standard deviation; what is always the same has none."""
    return spread(values[:1] if len(set(values)) == 1 else values, digits)


def _gflops(value: float) -> str:
    """Write as the paper does; what is small there would vanish.

    >>> _gflops(482.0179), _gflops(0.01234)
    ('482.0', '0.0123')
    """
    return f"{value:,.1f}" if value >= 1 else three_digits(value)


def _times(label: str, report: CompressionReport | None) -> tuple[str, str]:
    timing = next((each for each in report.timings if each.candidate.label == label), None) if report else None
    if report is None or timing is None:
        return "", ""
    median, ratio = timing.median, report.ratio(timing)
    low, high = duration(median.low), duration(median.high)
    return f"{duration(median.value)} ({low} to {high})", times(ratio) if ratio else ""


def printed_line(name: str, row: Printed) -> tuple[str, ...]:
    """Give a row of the paper as it is printed there.

    >>> printed_line("RigL", PRINTED["RigL"])[:5]
    ('RigL, printed', '408-100-69', '0.870', '482.0', '12.6')
    """
    return (
        f"{name}, printed",
        row.architecture,
        f"{row.sparsity:.3f}",
        f"{row.gflops:,.1f}" + (f" ({row.found_gflops:,.1f})" if row.found_gflops is not None else ""),
        f"{row.kflops:.1f}",
        f"{row.bytes:,}",
        "",
        f"{row.best:g}" + (f" ({row.final:g})" if row.final is not None else ""),
        *("", "", ""),
    )


def start_lines(latencies: Mapping[str, CompressionReport]) -> Iterator[str]:
    """Say how long the start network of each section takes."""
    for section, report in latencies.items():
        time = _times(START, report)[0]
        if time:
            yield f"{f'{section}: ' if section else ''}the start network takes {time}."


def failure_lines(rows: Sequence[RowFigures]) -> list[str]:
    """List the runs that failed, with their reasons."""
    return [f"{row.row.label}, seed {seed}: failed, {reason}" for row in rows for seed, reason in row.failures]
