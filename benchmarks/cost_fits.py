"""The fits of `calibrate_costs.py`: from measured layers to the costs of the cost model. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from rigl_compress.runtime.calibration import fit, fit_family
from rigl_compress.runtime.cost_model import Work, predicted_time
from rigl_compress.runtime.cost_tables import Split

Row = Mapping[str, Any]
Rows = Sequence[Row]
Costs = dict[str, float]
Gain = tuple[Mapping[str, float], Mapping[str, float], float]  # costs and amounts of work, and the gain of two threads
# Single vectors with more non-zeros per thread are not looked up in registers (native/plan.cpp).
MOST_LOOKED_UP = 2**20
# The families to which the costs of a kernel are fitted, and the amounts of work that it knows.
KERNELS = {
    "vector": (("vector",), ("products",)),
    "batched": (("batched",), ("products", "columns", "rows")),
    "conv": (("pointwise", "spatial"), ("products", "columns", "rows")),
}
# Of the work per thread, for a single vector: it moves little data between the caches of threads.
VECTOR_SHARE = 0.5
SIMPLE = ("depthwise", "depthwise_direct", "layer_norm")
# The thresholds and shares to choose from.
WORKS = tuple(float(f"{work:.2g}") for work in np.geomspace(1_000, 200_000, 47))
SHARES = tuple(share / 100 for share in range(50, 101, 5))
AS_GOOD = 0.005  # difference of the mean logarithm of times
STARTS = tuple(float(start) for start in range(0, 20_001, 1000))


def family_costs(rows: Rows) -> tuple[dict[str, Costs], str]:
    """Return the costs of a family, and a sentence on how well they predict."""
    return fit_family([(Work(**row["work"]), row["dense"], row["sparse"]) for row in rows])


def kernel_work(work: Work, names: Iterable[str]) -> Costs:
    """Return the work as the kernels count it: per pixel or sample instead of per vector."""
    pixels = work.pixels * max(work.images, 1)
    amounts = {"products": work.nonzeros * pixels, "columns": work.columns * pixels, "rows": work.rows * pixels}
    return {**{name: float(amounts[name]) for name in names}, "call": 1.0}


def without_call(costs: Mapping[str, float]) -> Costs:
    """Return the costs of the work itself: what a call costs is not split."""
    return {name: cost for name, cost in costs.items() if name != "call"}


def kernel_costs(measured: Mapping[str, Rows], kernels: str) -> dict[str, Costs]:
    """Return the costs of all kernels whose measurements are there."""
    found: dict[str, Costs] = {}
    for kernel, (families, names) in KERNELS.items():
        rows = [row for family in families for row in measured.get(family, ())]
        if all(family in measured for family in families):
            found |= _vector_costs(rows, kernels) if kernel == "vector" else {kernel: _fitted(rows, names)}
    for kernel in (kernel for kernel in SIMPLE if kernel in measured):
        rows = list(measured[kernel])
        amounts = [{name: amount for name, amount in row.items() if name != "seconds"} for row in rows]
        found[kernel] = without_call(fit(amounts, [row["seconds"] for row in rows]))
    if {"batched", "conv"} <= set(found):
        found["plan"] = {"row": row_cost(found["batched"], found["conv"])}
    return found


def _fitted(rows: Rows, names: Iterable[str]) -> Costs:
    names = tuple(names)
    return without_call(fit([kernel_work(Work(**row["work"]), names) for row in rows], [row["sparse"] for row in rows]))


def _vector_costs(rows: Rows, kernels: str) -> dict[str, Costs]:
    """Return the costs of single vectors: with AVX-512 those of moderate size are looked up in registers."""
    small = [row for row in rows if row["work"]["nonzeros"] <= MOST_LOOKED_UP]
    large = [row for row in rows if row["work"]["nonzeros"] > MOST_LOOKED_UP]
    loaded = _fitted(large if kernels == "avx512" else rows, ("products",))
    return {"vector": loaded, "vector_windows": _fitted(small, ("products",)) if kernels == "avx512" else loaded}


def row_cost(*kernels: Mapping[str, float]) -> float:
    """Return the cost of a row in non-zeros, the geometric mean of some kernels.

    >>> row_cost({"products": 0.1, "rows": 0.2}, {"products": 0.1, "rows": 0.8})
    4.0
    """
    return float(np.round(np.exp(np.mean([np.log(costs["rows"] / costs["products"]) for costs in kernels])), 1))


def best_work(rows: Rows) -> float:
    """Return the work per thread with which networks take least: each in turn with some works, on two threads.

    Of works about as good, the largest: a thread that gains nothing is better used by others.

    >>> best_work([{"network": "a", "work_per_thread": work, "seconds": abs(work - 3)} for work in (1.0, 2.0, 9.0)])
    2.0
    """
    works = sorted({row["work_per_thread"] for row in rows})
    means = np.array([np.mean([np.log(row["seconds"]) for row in rows if row["work_per_thread"] == w]) for w in works])
    return float(works[np.flatnonzero(means <= means.min() + AS_GOOD)[-1]])


def best_split(gains: Sequence[Gain], works: Iterable[float]) -> Split:
    """Return how the times of two threads follow from the costs of one: with the least error of the gains."""
    splits = (Split(*each) for each in product(works, SHARES, STARTS))
    return min(splits, key=lambda split: gain_error(gains, split))


def gain_error(gains: Sequence[Gain], split: Split) -> float:
    """Return the mean error of predicted gains of a second thread, as a logarithm."""
    errors = []
    for costs, amounts, measured in gains:
        one, two = (predicted_time(costs, amounts, threads, split) for threads in (1, 2))
        errors.append(abs(np.log(one / two / measured)))
    return float(np.mean(errors))


def estimated_ns(work: Work, kernels: Mapping[str, Costs]) -> float:
    """Return the time of a call as the kernels estimate it (native/matmul.cpp, native/conv.cpp)."""
    looked_up = work.family == "vector" and work.nonzeros <= MOST_LOOKED_UP
    kernel = "vector_windows" if looked_up else "conv" if work.images else work.family
    costs = kernels[kernel]
    return sum(costs[name] * amount for name, amount in kernel_work(work, costs).items() if name != "call")


@dataclass(frozen=True)
class Chain:
    """A layer of a chain: its work, its costs by family and kernel, and its measured seconds."""

    work: Work
    lanes: int
    costs: Mapping[str, Any]  # "families" and "kernels"
    row: Row

    @property
    def estimate(self) -> float:
        """The nanoseconds by which the kernels decide."""
        return estimated_ns(self.work, self.costs["kernels"])

    def gain(self, side: str) -> Gain:
        """Return the costs and amounts of work of a side, and its gain from a second thread."""
        amounts = self.work.dense() if side == "dense" else self.work.sparse(self.lanes)
        return self.costs["families"][self.work.family][side], amounts, self.row[f"{side}_1"] / self.row[f"{side}_2"]


def thread_costs(chains: Sequence[Chain], work: float, vector_work: float) -> dict[str, Costs]:
    """Return how dense and sparse operators gain from threads, if the kernels use one for so much work."""
    limits = {"vector": vector_work}
    split = [chain for chain in chains if chain.estimate >= 2 * limits.get(chain.work.family, work)]
    sparse = best_split([chain.gain("sparse") for chain in split], (1.0,))
    dense = best_split([chain.gain("dense") for chain in chains], WORKS)
    return {"dense": asdict(dense), "sparse": {"share": sparse.share, "start": sparse.start}}
