"""A report as tables of text: for the terminal, for Markdown, for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from rigl_compress.core.wording import listed, percent
from rigl_compress.pipeline.bench.bench_report import BenchedModel, CompressionReport, Timing
from rigl_compress.pipeline.bench.layer_times import LayerTime
from rigl_compress.pipeline.bench.operator_profile import ProfileRow
from rigl_compress.pipeline.bench.timing_statistics import Estimate, differs, is_slower
from rigl_compress.pipeline.markdown import markdown

_PREFIXES = ((1e9, " G"), (1e6, " M"), (1e3, " K"), (0.0, ""))
_TIMES = ((1.0, " s"), (1e-3, " ms"), (1e-6, " µs"), (0.0, " ns"))
BAR, _LONGEST = "█", 20


@dataclass(frozen=True)
class TextTable:
    """A table with its title."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def markdown(self) -> str:
        """The table in Markdown."""
        return markdown(self.columns, self.rows)


def three_digits(value: float) -> str:
    """Format a number with three significant digits.

    >>> three_digits(53.244), three_digits(8.2), three_digits(690.4), three_digits(0)
    ('53.2', '8.20', '690', '0')
    """
    digits = max(0, 2 - floor(log10(abs(value)))) if value else 0
    return f"{value:,.{digits}f}"


def count(value: float) -> str:
    """Format a large number with a prefix.

    >>> count(53_244), count(8.2023e9), count(690)
    ('53.2 K', '8.20 G', '690')
    """
    size, prefix = next((size, prefix) for size, prefix in _PREFIXES if abs(value) >= size)
    return three_digits(value / size) + prefix if size else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Format a time.

    >>> duration(3.46e-5), duration(1.5)
    ('34.6 µs', '1.50 s')
    """
    size, unit = next((size, unit) for size, unit in _TIMES if seconds >= size)
    return three_digits(seconds / (size or 1e-9)) + unit


def times(ratio: Estimate) -> str:
    """Format a ratio with its interval.

    >>> times(Estimate(0.52, 0.5, 0.54))
    '0.52x (0.50 to 0.54)'
    """
    return f"{ratio.value:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def verdict(ratio: Estimate) -> str:
    """Return what a ratio means: how much faster or slower, or that no difference is seen.

    >>> verdict(Estimate(0.5, 0.48, 0.52)), verdict(Estimate(2, 1.9, 2.1)), verdict(Estimate(1.01, 0.97, 1.05))
    ('2.00x faster', '2.00x slower', 'no difference seen')
    """
    if not differs(ratio):
        return "no difference seen"
    return f"{1 / ratio.value:.2f}x faster" if ratio.value < 1 else f"{ratio.value:.2f}x slower"


MODEL_COLUMNS = (
    *("model", "bytes on disk", "of baseline", "bytes, bit-mask", "parameters", "non-zeros", "sparsity"),
    *("FLOPs, zeros skipped", "FLOPs, dense", "load", "memory", "accuracy"),
)


def model_table(report: CompressionReport) -> TextTable:
    """Return the table of the models. FLOPs are per sample, zeros skipped and not."""
    base = report.model(report.baseline)
    rows = tuple(_model_row(model, base) for model in report.models)
    used = [any(row[place] for row in rows) for place in range(len(MODEL_COLUMNS))]
    keep = [place for place, each in enumerate(used) if each]
    return TextTable(
        "models", tuple(MODEL_COLUMNS[place] for place in keep), tuple(tuple(row[p] for p in keep) for row in rows)
    )


def _model_row(model: BenchedModel, base: BenchedModel) -> tuple[str, ...]:
    costs, footprint = model.costs, model.footprint
    return (
        model.label,
        f"{model.bytes:,}",
        f"{model.bytes / base.bytes:.3f}x",
        f"{costs.bitmask_bytes:,.0f}",
        f"{costs.parameters:,}",
        f"{costs.nonzeros:,}",
        percent(costs.sparsity, 1),
        count(costs.sparse_flops),
        count(costs.dense_flops),
        duration(footprint.load_seconds) if footprint else "",
        f"{footprint.peak_bytes / 1e6:,.1f} MB" if footprint else "",
        f"{model.accuracy:.2f} %" if model.accuracy is not None else "",
    )


TIMING_COLUMNS = ("model", "backend", "batch", "threads", "median (95 %)", "p90", "p99", "samples/s", "of baseline", "")


def timing_table(report: CompressionReport) -> TextTable:
    """Return the table of the timings."""
    rows = [_timing_row(timing, report) for timing in report.timings]
    for failure in report.failures:
        candidate = failure.candidate
        who = (candidate.label, candidate.backend, str(candidate.batch), str(candidate.threads))
        rows.append((*who, "failed", "", "", "", "", failure.reason))
    return TextTable("latency", TIMING_COLUMNS, tuple(rows))


def _timing_row(timing: Timing, report: CompressionReport) -> tuple[str, ...]:
    candidate, median, ratio = timing.candidate, timing.median, report.ratio(timing)
    baseline = report.reference(candidate) is timing
    return (
        *(candidate.label, candidate.backend, str(candidate.batch), str(candidate.threads)),
        f"{duration(median.value)} ({duration(median.low)} to {duration(median.high)})",
        duration(timing.percentile(0.9)),
        duration(timing.percentile(0.99)),
        count(timing.throughput),
        "1.00x" if baseline else (times(ratio) if ratio else ""),
        "; ".join(text for text in (_standing(ratio, baseline), _slower(timing, report)) if text),
    )


def _standing(ratio: Estimate | None, baseline: bool) -> str:
    return "baseline" if baseline else (verdict(ratio) if ratio else "")


def _slower(timing: Timing, report: CompressionReport) -> str:
    """Return a note if a network became slower when it was pruned."""
    ratio = report.of_trained(timing)
    if ratio is None or not is_slower(ratio):
        return ""
    return f"{ratio.value:.2f}x slower than {report.trained_label(timing.candidate.label)}, unpruned"


PROFILE_COLUMNS = ("operator", "type", "time", "share", "FLOPs, zeros skipped", "FLOPs, dense", "")


def profile_table(label: str, rows: Sequence[ProfileRow]) -> TextTable:
    """Return the table of operators, the slowest first, with a bar for each."""
    total, ordered = sum(row.seconds for row in rows) or 1.0, sorted(rows, key=lambda row: -row.seconds)
    largest = ordered[0].seconds / total if ordered and ordered[0].seconds else 1.0
    return TextTable(
        f"{label}, by operator",
        PROFILE_COLUMNS,
        tuple(
            _profile_row(row, row.seconds / total, round(row.seconds / total / largest * _LONGEST)) for row in ordered
        ),
    )


def _profile_row(row: ProfileRow, share: float, bar: int) -> tuple[str, ...]:
    flops = (count(row.sparse_flops), count(row.dense_flops)) if row.dense_flops else ("", "")
    return row.name, row.operator, duration(row.seconds), percent(share, 1), *flops, (BAR * bar).ljust(_LONGEST)


LAYER_COLUMNS = ("weights", "type", "shape", "zeros", "kernel", "time", "expected gain", "why it is dense")


def layer_table(label: str, rows: Sequence[LayerTime]) -> TextTable:
    """Return the table of layers in the sparse runtime, in the order of the graph."""
    return TextTable(f"{label}, by layer in the sparse runtime", LAYER_COLUMNS, tuple(map(_layer_row, rows)))


def _layer_row(row: LayerTime) -> tuple[str, ...]:
    gain, taken = (f"{row.gain:.2f}x" if row.gain else ""), (duration(row.seconds) if row.seconds else "")
    shape = "×".join(map(str, row.shape))
    return row.name, row.operator, shape, percent(1 - row.density, 1), row.kernel, taken, gain, row.reason


def described(report: CompressionReport) -> list[str]:
    """Return a line for each model whose file says what it is."""
    found = ((model.label, model.facts.get("about")) for model in report.models)
    return [f"{label}: {about}" for label, about in found if isinstance(about, str)]


def uncounted(report: CompressionReport) -> list[str]:
    """Return lines about operators without FLOPs, and about weights that sparse training left dense."""
    free = {
        model.label: f"counted as zero FLOPs: {', '.join(f'{n} {name}' for name, n in model.costs.uncounted.items())}"
        for model in report.models
        if model.costs.uncounted
    }
    dense = {
        model.label: f"left dense by sparse training: {listed(sizes)}"
        for model in report.models
        if isinstance(sizes := model.facts.get("left_dense"), Mapping) and sizes
    }
    return [*_said_once(free), *_said_once(dense)]


def _said_once(lines: Mapping[str, str]) -> list[str]:
    """Write a line once, with the names of all models that it is about.

    >>> _said_once({"a": "free: 2 Relu", "b": "free: 2 Relu", "c": "free: 1 Relu"})
    ['a, b: free: 2 Relu', 'c: free: 1 Relu']
    """
    texts = dict.fromkeys(lines.values())
    return [f"{', '.join(name for name, each in lines.items() if each == text)}: {text}" for text in texts]


def machine(report: CompressionReport) -> str:
    """Return a line about the machine and the date."""
    return machine_line(report.environment)


def machine_line(facts: Mapping[str, Any]) -> str:
    """Format an environment in a line."""
    if not facts:
        return ""
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    flags = f" ({' '.join(facts['cpu_flags'])})" if facts.get("cpu_flags") else ""
    load = ", ".join(map(str, facts.get("load", []))) or "unknown"
    return (
        f"{facts.get('cpu')}{flags}, {facts.get('cores')} cores, governor {facts.get('governor')}, load {load}, "
        f"{facts.get('system')}, Python {facts.get('python')}, {versions}, {facts.get('date')}"
    )


def all_tables(report: CompressionReport) -> list[TextTable]:
    """Return the tables of a report: models, timings, operators, layers."""
    profiles = [profile_table(label, rows) for label, rows in report.profiles.items()]
    layers = [layer_table(label, rows) for label, rows in report.layers.items()]
    return [model_table(report), timing_table(report), *profiles, *layers]


def report_markdown(report: CompressionReport) -> str:
    """Return a report in Markdown, as for a pull request."""
    parts = [f"**{table.title}**\n\n{table.markdown}" for table in all_tables(report)]
    parts += [f"- {line}" for line in (*report.warnings, *described(report), *uncounted(report))]
    return "\n\n".join([*parts, f"`{report.command}`", machine(report)]) + "\n"
