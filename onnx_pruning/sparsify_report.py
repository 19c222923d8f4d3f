"""What came of pruning an ONNX file: layers, outputs, bytes and times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any

from rigl_compress.core.artifacts import FORMAT
from rigl_compress.core.wording import percent, some
from rigl_compress.onnx_pruning.budget_outcome import BudgetOutcome
from rigl_compress.onnx_pruning.one_shot_pruning import PrunedWeight
from rigl_compress.onnx_pruning.output_quality import OutputQuality
from rigl_compress.pipeline.bench.bench_tables import TextTable, duration
from rigl_compress.pipeline.bench.conditions import Condition, Verdict

METRICS = ("agreement", "cosine", "snr", "size", "latency", "speedup", "sparsity")


@dataclass(frozen=True)
class Latency:
    """The median time of a file in a runtime, in seconds."""

    file: str
    runtime: str
    seconds: float


def sparsity_of(layers: Sequence[PrunedWeight]) -> float:
    """Return the share of zeros in layers; depthwise ones, which stay dense, do not count."""
    free = [each for each in layers if not each.depthwise]
    return 1 - sum(each.count for each in free) / max(1, sum(each.size for each in free))


@dataclass(frozen=True)
class SparsifyReport:
    """The result of `sparsify_onnx`."""

    source: Path
    path: Path
    method: str
    allocation: str
    layers: tuple[PrunedWeight, ...]
    dense: Mapping[str, str]  # weights that were not touched, with their reasons
    quality: OutputQuality
    source_bytes: int
    bytes: int
    latencies: tuple[Latency, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sparsity(self) -> float:
        """The share of zeros in all layers that could be pruned."""
        return sparsity_of(self.layers)

    def time_of(self, file: str, runtime: str) -> float | None:
        """Return the median time of a file in a runtime."""
        return next((each.seconds for each in self.latencies if (each.file, each.runtime) == (file, runtime)), None)

    @property
    def latency(self) -> float | None:
        """The time of the pruned file in our session."""
        return self.time_of("pruned", "sparse")

    @property
    def speedup(self) -> float | None:
        """How many times faster it is in our session than the original in ONNX Runtime."""
        before, after = self.time_of("original", "onnxruntime"), self.latency
        return before / after if before and after else None

    @property
    def predicted(self) -> tuple[float, float] | None:
        """The predicted seconds of all layers, dense and as pruned."""
        known = [each.predicted for each in self.layers if each.predicted]
        return (sum(each[0] for each in known), sum(each[1] for each in known)) if known else None

    def with_budget(self, flops: float | None) -> "SparsifyReport":
        """Add what the budget came to, and a note if the measured time is another than the wished one."""
        if "budget" not in self.facts:
            return self
        figures = {"size": float(self.bytes), "flops": flops, "latency": self.latency, "speedup": self.speedup}
        found = BudgetOutcome.of(self.facts["budget"], figures)
        facts = {**self.facts, "budget": {**self.facts["budget"], "reached": found.reached, "measured": found.measured}}
        return replace(self, facts=facts, notes=(*self.notes, *found.notes(removed=not facts["budget"]["idle"])))

    def metric(self, name: str) -> float | None:
        """Return a figure by its name in a condition."""
        quality = self.quality
        found: dict[str, float | None] = {
            "agreement": quality.agreement,
            "cosine": quality.cosine,
            "snr": quality.snr,
            "size": float(self.bytes),
            "latency": self.latency,
            "speedup": self.speedup,
            "sparsity": self.sparsity,
        }
        return found[name]

    def check(self, conditions: Sequence[Condition]) -> list[Verdict]:
        """Check conditions; a figure that is not known meets none. `size<=0.5x` is relative to the original."""
        base = {"size": float(self.source_bytes), "latency": self.time_of("original", "onnxruntime")}
        return [each.judge(str(self.path), self.metric(each.metric), base.get(each.metric)) for each in conditions]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        rows = [{**asdict(each), "shape": list(each.shape), "sparsity": each.sparsity} for each in self.layers]
        return {
            "format": FORMAT,
            **{"source": str(self.source), "path": str(self.path), "method": self.method},
            **{"allocation": self.allocation, "sparsity": self.sparsity, "quality": asdict(self.quality)},
            "predicted": self.predicted,
            **{"source_bytes": self.source_bytes, "bytes": self.bytes, "speedup": self.speedup},
            "latencies": [asdict(each) for each in self.latencies],
            **{"layers": rows, "dense": dict(self.dense), "notes": list(self.notes), "seconds": self.seconds},
            **self.facts,
        }


def summary_table(report: SparsifyReport) -> TextTable:
    """Return the figures of a result."""
    alone = [each for each in report.layers if each.depthwise]
    rows = [
        ("sparsity", f"{percent(report.sparsity)} of {len(report.layers) - len(alone)} layers"),
        *([("left dense, one channel per output", _left_dense(alone))] if alone else []),
        *([("budget", BudgetOutcome.read(known).line)] if (known := report.facts.get("budget")) else []),
        *([("dead channels removed", _channels(gone))] if (gone := report.facts.get("dead_channels")) else []),
        ("bytes", f"{report.bytes:,} of {report.source_bytes:,}"),
        *_quality_rows(report.quality),
        *([("predicted for these layers", _change(report.predicted))] if report.predicted else []),
        *((f"{each.file} in {each.runtime}", duration(each.seconds)) for each in report.latencies),
        *([("speed-up", f"{report.speedup:.2f}x")] if report.speedup else []),
    ]
    return TextTable(f"on {report.quality.samples} held-out samples", ("", ""), tuple(rows))


def _left_dense(layers: Sequence[PrunedWeight]) -> str:
    count = sum(each.size for each in layers)
    return f"{count:,} weights of {len(layers)} layer{'s' if len(layers) > 1 else ''}"


def _quality_rows(quality: OutputQuality) -> Iterator[tuple[str, str]]:
    yield "signal to noise of the outputs", "not known" if quality.snr is None else f"{quality.snr:.1f} dB"
    if quality.cosine is not None:
        yield "mean cosine of the outputs", f"{quality.cosine:.4f}"
    if quality.agreement is not None:
        yield f"same {'class' if quality.values else 'integers'} as the original", percent(quality.agreement)
    if quality.not_finite:
        yield "outputs left out, as they are not finite", f"{quality.not_finite:,} of {quality.values:,}"


def _channels(removed: Mapping[str, int]) -> str:
    return f"{sum(removed.values()):,} of {len(removed)} layers"


def layer_table(report: SparsifyReport) -> TextTable:
    """Return a row for every layer."""
    rows = [
        (each.name, each.operator, "×".join(map(str, each.shape)), percent(each.sparsity), _error(each.error), each.how,
         "not known" if report.latencies and each.predicted is None else _change(each.predicted))
        for each in report.layers
    ]  # fmt: skip
    columns = ("weight", "operator", "shape", "sparsity", "error", "how", "predicted")
    return TextTable("layers", columns, tuple(rows))


def _change(times: tuple[float, float] | None) -> str:
    """Format times before and after.

    >>> _change((3e-5, 1.234e-5))
    '30.0 µs → 12.3 µs'
    """
    return "" if times is None else " → ".join(map(duration, times))


def _error(value: float | None) -> str:
    return "" if value is None or isnan(value) else f"{value:.4f}"


def dense_lines(dense: Mapping[str, str]) -> list[str]:
    """Return which weights were not touched, a line for each reason.

    >>> dense_lines({"a": "read by Add", "b": "too small", "c": "read by Add"})
    ['left as they are (read by Add): a, c', 'left as it is (too small): b']
    """
    found: dict[str, list[str]] = {}
    for name, reason in dense.items():
        found.setdefault(reason, []).append(name)
    return [
        f"left as {'it is' if len(names) == 1 else 'they are'} ({reason}): {some(names, most=8)}"
        for reason, names in found.items()
    ]
