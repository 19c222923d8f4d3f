"""The report of a benchmark: models, timings, profiles, machine; to JSON and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rigl_compress.core.artifacts import read_json
from rigl_compress.core.dataclass_io import convert, parse, plain
from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters.onnx_costs import GraphCosts
from rigl_compress.pipeline.bench.footprint import Footprint
from rigl_compress.pipeline.bench.layer_times import LayerTime
from rigl_compress.pipeline.bench.operator_profile import ProfileRow
from rigl_compress.pipeline.bench.report_validation import check_figures
from rigl_compress.pipeline.bench.timing_statistics import (
    Estimate,
    differs,
    is_slower,
    median_estimate,
    percentile,
    ratio_estimate,
    too_noisy,
)

FORMAT = 1


@dataclass(frozen=True)
class BenchedModel:
    """A model: its file, its costs per sample, and what its metadata says about it. `pixels`: connections per pixel.

    `trained`: the label of the model that this one was pruned from; `added`: not named by the user, for comparison.
    """

    label: str
    path: str
    bytes: int
    costs: GraphCosts
    facts: Mapping[str, Any] = field(default_factory=dict)
    footprint: Footprint | None = None
    pixels: tuple[tuple[int, ...], ...] = ()
    trained: str = ""
    added: bool = False

    @property
    def accuracy(self) -> float | None:
        """The accuracy in the file's metadata, in per cent."""
        found = self.facts.get("accuracy")
        return float(found) if isinstance(found, int | float) else None


@dataclass(frozen=True)
class Candidate:
    """A model in a runtime, with a batch, on so many threads."""

    label: str
    backend: str
    batch: int
    threads: int

    @property
    def cell(self) -> tuple[int, int]:
        """What candidates share if they can be compared."""
        return self.batch, self.threads


@dataclass(frozen=True)
class Timing:
    """The seconds that runs took, by opening; all figures are derived from them."""

    candidate: Candidate
    samples: tuple[tuple[float, ...], ...]

    @property
    def median(self) -> Estimate:
        """The median with its interval."""
        return median_estimate(self.samples)

    def percentile(self, share: float) -> float:
        """Return the time that a share of the runs stay below."""
        return percentile(self.samples, share)

    @property
    def throughput(self) -> float:
        """Samples of data per second."""
        return self.candidate.batch / percentile(self.samples, 0.5)


@dataclass(frozen=True)
class Failure:
    """A candidate that could not be timed."""

    candidate: Candidate
    reason: str


@dataclass(frozen=True)
class CompressionReport:
    """All results of a benchmark. `baseline`: the label of the model that the others are compared with."""

    baseline: str
    models: tuple[BenchedModel, ...]
    timings: tuple[Timing, ...] = ()
    failures: tuple[Failure, ...] = ()
    profiles: Mapping[str, tuple[ProfileRow, ...]] = field(default_factory=dict)
    layers: Mapping[str, tuple[LayerTime, ...]] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def __post_init__(self) -> None:
        labels = [model.label for model in self.models]
        if self.baseline not in labels:
            raise InputError(f"no model {self.baseline!r} for the baseline: {did_you_mean(self.baseline, labels)}")

    def model(self, label: str) -> BenchedModel:
        """Return a model by its label."""
        return next(model for model in self.models if model.label == label)

    def reference(self, candidate: Candidate) -> Timing | None:
        """Return what a candidate is compared with: the baseline in the first runtime that ran it in the same way."""
        same = (timing for timing in self.timings if timing.candidate.cell == candidate.cell)
        return next((timing for timing in same if timing.candidate.label == self.baseline), None)

    def ratio(self, timing: Timing) -> Estimate | None:
        """Return the ratio of a candidate's time to the baseline's."""
        reference = self.reference(timing.candidate)
        return None if reference is None else ratio_estimate(timing.samples, reference.samples)

    def trained_label(self, label: str) -> str:
        """Return the label of the network that a model was pruned from, if it was."""
        return next((model.trained for model in self.models if model.label == label), "")

    def trained(self, candidate: Candidate) -> Timing | None:
        """Return the timing of the network that a candidate was pruned from, run in the same way."""
        twin = replace(candidate, label=self.trained_label(candidate.label))
        return next((timing for timing in self.timings if timing.candidate == twin), None)

    def of_trained(self, timing: Timing) -> Estimate | None:
        """Return the ratio of a pruned candidate's time to the trained network's."""
        trained = self.trained(timing.candidate)
        return None if trained is None else ratio_estimate(timing.samples, trained.samples)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about figures: pruned networks that became slower, differences below the noise."""
        return (*self._slower(), *self._noisy())

    def _slower(self) -> Iterator[str]:
        for timing in self.timings:
            ratio = self.of_trained(timing)
            if ratio is not None and is_slower(ratio):
                yield (
                    f"{name_of(timing.candidate)} was pruned and is slower than "
                    f"{self.trained_label(timing.candidate.label)}, the network before pruning: {ratio.value:.2f}x "
                    f"({ratio.low:.2f}x to {ratio.high:.2f}x); export the trained one with --network trained"
                )

    def _noisy(self) -> Sequence[str]:
        found = []
        for timing in self.timings:
            reference, ratio = self.reference(timing.candidate), self.ratio(timing)
            if reference is None or ratio is None or reference is timing or not too_noisy(ratio):
                continue
            found.append(
                f"the machine is too noisy to tell {name_of(timing.candidate)} from {name_of(reference.candidate)}: "
                f"{ratio.low:.2f}x to {ratio.high:.2f}x; stop other work, or use more --openings and --rounds"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, and with each timing the figures that are derived from it."""
        content = plain(self)
        for row, timing in zip(content["timings"], self.timings, strict=True):
            row["derived"] = _derived(timing, self.ratio(timing)) | _pruned(self.of_trained(timing))
        return {**content, "warnings": list(self.warnings)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "CompressionReport":
        """Read what `to_json` returned; derived figures are derived again."""
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            found = content.get("format") if isinstance(content, Mapping) else None
            raise InputError(f"a report of format {found!r}, this version reads {FORMAT}: bench again")
        rows = convert(tuple[Mapping[str, Any], ...], content.get("timings"), "timings")
        timings = [{key: value for key, value in row.items() if key != "derived"} for row in rows]
        kept = {key: value for key, value in content.items() if key != "warnings"}
        found = parse(cls, {**kept, "timings": timings})
        check_figures(found)
        return found

    @classmethod
    def load(cls, path: Path) -> "CompressionReport":
        """Read a report from a file."""
        try:
            return cls.from_json(read_json(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def name_of(candidate: Candidate) -> str:
    """Name a candidate in a sentence.

    >>> name_of(Candidate("small", "torch", 1, 2))
    'small (torch, batch 1, 2 threads)'
    """
    threads = f"{candidate.threads} thread{'s' if candidate.threads > 1 else ''}"
    return f"{candidate.label} ({candidate.backend}, batch {candidate.batch}, {threads})"


def _derived(timing: Timing, ratio: Estimate | None) -> dict[str, Any]:
    median = timing.median
    found: dict[str, Any] = {
        "median": median.value,
        "median_interval": [median.low, median.high],
        "p90": timing.percentile(0.9),
        "p99": timing.percentile(0.99),
        "throughput": timing.throughput,
    }
    if ratio is not None:
        found |= {"ratio": ratio.value, "ratio_interval": [ratio.low, ratio.high], "differs": differs(ratio)}
    return found


def _pruned(ratio: Estimate | None) -> dict[str, Any]:
    if ratio is None:
        return {}
    interval = [ratio.low, ratio.high]
    return {"of_trained": ratio.value, "of_trained_interval": interval, "slower_than_trained": is_slower(ratio)}
