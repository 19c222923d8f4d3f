"""The figures of the paper's table: of a run, and of all the runs of a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.compare.comparison import Comparison, Row
from rigl_compress.pipeline.compare.course import Outcome
from rigl_compress.pipeline.run import EXPORTS
from rigl_compress.pipeline.train.cost_conventions import TrainingRun
from rigl_compress.pipeline.train.costs import training_flops
from rigl_compress.pipeline.train.metrics import Metric, metric_of
from rigl_compress.pipeline.train.summary import sparse_report
from rigl_compress.pipeline.workspace import Run

CONVENTION = "paper-table"  # how the paper's table counts training


@dataclass(frozen=True)
class Figures:
    """What a run has in the table. `found_gflops`: training what was left from scratch; `disk`: the smallest file."""

    seed: int
    architecture: str
    sparsity: float
    gflops: float
    kflops: float
    bytes: float
    best: float
    final: float
    found_gflops: float | None = None
    disk: int | None = None


@dataclass(frozen=True)
class RowFigures:
    """A row with the figures of its runs, and the reasons of those that failed, by seed."""

    row: Row
    runs: tuple[Figures, ...]
    failures: tuple[tuple[int, str], ...]
    metric: Metric

    @property
    def architecture(self) -> str:
        """What is left: the mean of the widths over the seeds."""
        return mean_architecture([run.architecture for run in self.runs])


def all_figures(comparison: Comparison, outcomes: Sequence[Outcome]) -> list[RowFigures]:
    """Give the figures of every row, in the order of the comparison."""
    return [
        _row_figures(row, [each for each in outcomes if each.cell.row.label == row.label]) for row in comparison.row
    ]


def _row_figures(row: Row, outcomes: Sequence[Outcome]) -> RowFigures:
    failures = [(outcome.cell.seed, outcome.failure or _not_counted(outcome.result or {})) for outcome in outcomes]
    counted = [outcome for outcome, (_, failure) in zip(outcomes, failures, strict=True) if not failure]
    return RowFigures(
        row,
        tuple(figures_of(outcome.cell.run, outcome.cell.seed, outcome.result) for outcome in counted),
        tuple((seed, failure) for seed, failure in failures if failure),
        metric_of(counted[0].result or {} if counted else {}),
    )


def _not_counted(result: Mapping[str, Any]) -> str:
    """Say which figures a trained network has not, if any."""
    return "; ".join(f"{part} was not counted: {why}" for part, why in result.get("not_counted", {}).items())


def figures_of(run: Run, seed: int, result: Any) -> Figures:
    """Give the figures of a run; those that need its files are left out where there are none."""
    final, best = metric_of(result).final_and_best(result)
    alive, files = result["alive"], [run.export_file(name) for name in EXPORTS]
    return Figures(
        seed,
        alive["architecture"],
        alive["sparsity"],
        result["training_gflops"][CONVENTION],
        alive["kflops"],
        alive["bitmask_bytes"],
        best,
        final,
        found_gflops(run, result.get("samples")),
        min((file.stat().st_size for file in files if file.exists()), default=None),
    )


def found_gflops(run: Run, samples: int | None) -> float | None:
    """Give the cost of training what is left of a network from scratch, with its connections as they are.

    By the paper's table: N · 2 (3 W − W₁), of the connections alive, which in a structured method's network are all.
    """
    if samples is None or not run.pruned_file.exists():
        return None
    left = sparse_report(SparseModel.load(run.pruned_file))
    return training_flops("static", left, TrainingRun(samples), CONVENTION) / 1e9


def mean_architecture(every: Sequence[str]) -> str:
    """Give the mean of the widths, rounded; of what is not told in widths the first.

    >>> mean_architecture(["408-100-69", "411-99-68"]), mean_architecture(["20 units in 7 layers", "9 in 7"])
    ('410-100-68', '20 units in 7 layers')
    """
    try:
        widths = [list(map(int, each.split("-"))) for each in every]
        return "-".join(str(round(mean(each))) for each in zip(*widths, strict=True))
    except ValueError:
        return every[0]
