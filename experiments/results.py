"""The results of an experiment, and the file that holds them: `experiment.json`, of `sweep` and `compare` alike."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rigl_compress.core.artifacts import read_json
from rigl_compress.core.dataclass_io import parse, plain
from rigl_compress.core.errors import InputError
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.experiments.published_flops.structured_pruning import PRINTED
from rigl_compress.experiments.spec import Experiment, Row
from rigl_compress.experiments.trial_figures import Figures, figures_of, mean_architecture
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.metrics import Metric, metric_of
from rigl_compress.pipeline.workspace import Run

FORMAT, RESULTS = 1, "experiment.json"


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial and its figures, or the reason for its failure."""

    seed: int
    folder: str
    result: Mapping[str, Any] | None = None
    failure: str = ""
    figures: Figures | None = None
    pruned: str = ""  # when and why a search gave it up

    @property
    def run(self) -> Run:
        """The run folder."""
        return Run(Path(self.folder))

    @property
    def problem(self) -> str:
        """Why the trial failed, or which figures could not be counted; empty if there is nothing to report."""
        missing = (self.result or {}).get("not_counted", {}).items()
        reasons = "; ".join(f"{part} was not counted: {why}" for part, why in missing)
        return f"failed, {self.failure}" if self.failure else reasons

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        pruned = {"pruned": self.pruned} if self.pruned else {}
        known = {key: value for key, value in vars(self).items() if key != "pruned"}
        return {**known, **pruned, "figures": self.figures and plain(self.figures)}


@dataclass(frozen=True)
class RowResult:
    """A row with the results of its trials."""

    row: Row
    runs: tuple[TrialResult, ...]

    @property
    def good(self) -> list[TrialResult]:
        """The trials that were trained to their end."""
        return [run for run in self.runs if not run.failure and not run.pruned]

    @property
    def figures(self) -> list[Figures]:
        """The figures of the trials that did not fail."""
        return [run.figures for run in self.runs if run.figures]

    @property
    def results(self) -> list[Mapping[str, Any]]:
        """The results of the trials that did not fail."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def metric(self) -> Metric:
        """The metric of the row's task."""
        return metric_of(next(iter(self.results), {}))

    @property
    def architecture(self) -> str:
        """The mean of the widths over the seeds; empty if they could not be counted."""
        known = [each.architecture for each in self.figures if each.architecture]
        return mean_architecture(known) if known else ""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: the keys of the row, the figures that the paper prints for it, the trials."""
        printed = {"printed": asdict(PRINTED[self.row.paper])} if self.row.paper else {}
        return {**plain(self.row), **printed, "runs": [run.to_json() for run in self.runs]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "RowResult":
        """Read the output of `to_json`."""
        keys = {field.name for field in fields(Row)}
        row = parse(Row, {key: value for key, value in content.items() if key in keys})
        return cls(row, tuple(parse(TrialResult, run) for run in content["runs"]))


@dataclass(frozen=True)
class ExperimentResult:
    """The results of all rows, in the order of the spec, and the benchmark of each section that has one."""

    experiment: Experiment
    rows: tuple[RowResult, ...]
    latencies: Mapping[str, CompressionReport] = field(default_factory=dict)
    command: str = field(default_factory=command_line)
    environment: Mapping[str, Any] = field(default_factory=environment)
    search: Mapping[str, Any] | None = None  # how the rows were chosen, if a search did

    @property
    def failed(self) -> bool:
        """Whether any trial failed."""
        return any(run.failure for row in self.rows for run in row.runs)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values: every trial with its result and figures."""
        spec = self.experiment
        return {
            **{"format": FORMAT, "name": spec.name, "about": spec.about.strip(), "seeds": spec.seeds},
            **{"command": self.command, "environment": dict(self.environment)},
            **({} if self.search is None else {"search": dict(self.search)}),
            "rows": [row.to_json() for row in self.rows],
            "latency": {section: report.to_json() for section, report in self.latencies.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ExperimentResult":
        """Read the output of `to_json`."""
        if (found := content.get("format")) != FORMAT:
            raise InputError(f"results of format {found!r}, expected {FORMAT}: run the same command again")
        rows = tuple(map(RowResult.from_json, content["rows"]))
        spec = Experiment(
            content["name"], tuple(row.row for row in rows), about=content["about"], seeds=content["seeds"]
        )
        reports = {section: CompressionReport.from_json(each) for section, each in content["latency"].items()}
        return cls(spec, rows, reports, content["command"], content["environment"], content.get("search"))

    @classmethod
    def load(cls, folder: Path) -> "ExperimentResult":
        """Read the results of an experiment from its folder."""
        try:
            return cls.from_json(read_json(folder / RESULTS))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{folder / RESULTS} is damaged ({error!r}): run the same command again") from None


def by_section(rows: Sequence[RowResult]) -> dict[str, list[RowResult]]:
    """Group rows by their section, in the order of the rows."""
    sections = dict.fromkeys(row.row.section for row in rows)
    return {section: [row for row in rows if row.row.section == section] for section in sections}


def rows_of(experiment: Experiment, outcomes: Sequence[Outcome]) -> tuple[RowResult, ...]:
    """Return the outcomes by row, in the order of the spec."""
    return tuple(
        RowResult(row, tuple(_trial_result(each) for each in outcomes if each.trial.row.label == row.label))
        for row in experiment.row
    )


def _trial_result(outcome: Outcome) -> TrialResult:
    trial, result = outcome.trial, outcome.result
    figures = None if result is None else figures_of(trial.run, result)
    return TrialResult(trial.seed, str(trial.path), result, outcome.failure, figures, outcome.pruned)
