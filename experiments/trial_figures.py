"""The figures of a trial in the paper's table: size, cost and error of what it trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.metrics import metric_of
from rigl_compress.pipeline.run_pipeline import EXPORTS
from rigl_compress.pipeline.train.training_summary import sparse_report
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.training_flop_conventions import TrainingRun
from rigl_compress.sparsity.training_flops import static, training_flops

CONVENTION = "paper-table"  # how the paper's table counts training


@dataclass(frozen=True)
class Figures:
    """Figures of a trial; None where they could not be counted.

    `found_gflops`: the cost of training the pruned network from scratch; `disk`: bytes of the smallest file.
    """

    best: float
    final: float
    architecture: str | None = None
    sparsity: float | None = None
    gflops: float | None = None
    kflops: float | None = None
    bytes: float | None = None
    found_gflops: float | None = None
    disk: int | None = None


def figures_of(run: Run, result: Mapping[str, Any]) -> Figures:
    """Return the figures of a run; without its files, those that need them are None."""
    final, best = metric_of(result).final_and_best(result)
    pruned, files = result.get("pruned") or {}, _files(run)
    return Figures(
        best,
        final,
        pruned.get("architecture"),
        pruned.get("sparsity"),
        (result.get("training_gflops") or {}).get(CONVENTION),
        pruned.get("kflops"),
        pruned.get("bitmask_bytes"),
        found_gflops(run, result.get("samples")),
        min((file.stat().st_size for file in files if file.exists()), default=None),
    )


def _files(run: Run) -> list[Path]:
    """Return the files of what was trained."""
    return [run.export_file(name) for name, each in EXPORTS.items() if each.network != "dense"]


def found_gflops(run: Run, samples: int | None) -> float | None:
    """Return the cost of training the pruned network from scratch with its active connections.

    By the convention of the paper's table: N · 2 (3 W − W₁), W being the active connections; after structured pruning
    all connections are active.
    """
    if samples is None or not run.pruned_file.exists():
        return None
    left = sparse_report(SparseModel.load(run.pruned_file))
    return training_flops(static, left, TrainingRun(samples), CONVENTION) / 1e9


def mean_architecture(every: Sequence[str]) -> str:
    """Return the mean widths, rounded; the first architecture if they are not all widths.

    >>> mean_architecture(["408-100-69", "411-99-68"]), mean_architecture(["20 units in 7 layers", "9 in 7"])
    ('410-100-68', '20 units in 7 layers')
    """
    try:
        widths = [list(map(int, each.split("-"))) for each in every]
        return "-".join(str(round(mean(each))) for each in zip(*widths, strict=True))
    except ValueError:
        return every[0]
