"""The cost model: predicts the time of a layer, dense in ONNX Runtime and on sparse kernels.

`benchmarks/calibrate_costs.py` fits `costs.json` to measurements, and `rigl-compress calibrate` those of the user's own
machine, which are preferred: "families" is used here, and "kernels" is compiled
into the kernels, which decide by it how many threads to use. Only the ratio of two costs matters, and it changes little
between machines; a layer without a clear speedup stays dense.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from pathlib import Path

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, Shape
from rigl_compress.runtime.user_costs import user_costs

COSTS = Path(__file__).with_name("costs.json")
# The minimum predicted saving of a layer's time: the model is not exact.
MARGIN = 0.15
# The minimum predicted saving of all convolutions: images change layout between dense and sparse ones.
MIN_CONV_SAVING = 0.1
LANES = 8
# Nanoseconds of work from which on it is split among threads, and the share of a thread's time that each one after the
# first saves: ONNX Runtime's operators, and the kernels' (as "threads" in costs.json).
DENSE_PART, DENSE_SHARE = 20_000.0, 0.87
SPARSE_PART, SPARSE_VECTOR_PART, SPARSE_SHARE = 30_000.0, 7_500.0, 0.8
# The cost of copying one input with a Gather, in products of the dense operator.
GATHER_PRODUCTS = {"vector": 80, "batched": 250}
# Assumed for unknown axes; an unknown batch may have either size.
ASSUMED_BATCH, LARGE_BATCH, ASSUMED_SIDE = 1, 64, 14


@dataclass(frozen=True)
class Work:
    """The size of a layer: its weights, its non-zeros, and how often they are used."""

    rows: int
    columns: int
    weights: int
    nonzeros: int
    taps: int = 1  # of the filter
    pixels: int = 1  # of the output of one image, or samples of a batch
    images: int = 1
    stride: int = 1
    gathered: int = 0  # inputs copied one by one before the dense operator

    @property
    def family(self) -> str:
        """The kind of kernel, each with its own costs."""
        if self.taps > 1:
            return "spatial"
        return "pointwise" if self.images else "vector" if self.pixels == 1 else "batched"

    @property
    def vectors(self) -> int:
        """Vectors in one row of the output."""
        return max(self.images, 1) * -(-self.pixels // LANES)

    def dense(self) -> dict[str, float]:
        """Return the amounts of work of the dense operator: products, activations moved, calls."""
        moved = (self.columns / self.taps * self.stride**2 + self.rows) * self.pixels * max(self.images, 1)
        weights = self.weights + self.gathered * GATHER_PRODUCTS.get(self.family, 0)
        return {"products": weights * self.pixels * max(self.images, 1), "moved": moved, "call": 1.0}

    def sparse(self) -> dict[str, float]:
        """Return the amounts of work of the sparse operator: products, columns packed, rows, calls."""
        read = self.columns * (self.vectors + (self.stride > 1) * self.stride * self.vectors)
        return {"products": self.nonzeros * self.vectors, "read": read, "rows": self.rows * self.vectors, "call": 1.0}


def work_of(layer: Layer, graph: Graph, batch: int = ASSUMED_BATCH) -> Work:
    """Return the work of a layer, with assumed lengths for unknown axes."""
    rows, columns = layer.matrix.shape
    sizes = {"weights": layer.weights, "nonzeros": layer.nonzeros}
    if layer.operator != "SparseConv":
        return Work(rows, columns, **sizes, pixels=_samples(layer, graph, batch), images=0, gathered=layer.gathered)
    shape = graph.shape(layer.nodes[0].output[0])
    kernel, strides = layer.settings["kernel_shape"], layer.settings["strides"]
    images, pixels = _image(shape, len(kernel))
    pixels = max(pixels // layer.spread, 1)
    if pixels == prod(kernel) == 1:  # computed as a product
        return Work(rows, columns, **sizes, pixels=images, images=0)
    return Work(rows, columns, **sizes, taps=prod(kernel), pixels=pixels, images=images, stride=max(strides))


def _samples(layer: Layer, graph: Graph, batch: int) -> int:
    """Return how many vectors are multiplied at once; a recurrent layer has one state per sample."""
    shape = graph.shape(layer.projection.x if layer.projection else layer.read or layer.x)
    if not shape:
        return batch
    axes = shape[1:-1] if layer.projection else shape[:-1]
    return prod(_length(axis, batch if index == 0 else ASSUMED_BATCH) for index, axis in enumerate(axes))


def _image(shape: Shape | None, axes: int) -> tuple[int, int]:
    lengths = shape or ("",) * (axes + 2)
    return _length(lengths[0], ASSUMED_BATCH), prod(_length(axis, ASSUMED_SIDE) for axis in lengths[2:])


def _length(axis: int | str, otherwise: int) -> int:
    return axis if isinstance(axis, int) and axis > 0 else otherwise


@lru_cache
def coefficients() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Return nanoseconds per unit of work, by family, dense and sparse: measured on this machine if they were."""
    families: dict[str, dict[str, dict[str, float]]] = json.loads(COSTS.read_text(encoding="utf-8"))["families"]
    return user_costs(families) or families


def thread_count(threads: int) -> int:
    """Return the number of threads of a session: with 0, ONNX Runtime starts one for each core."""
    return threads if threads > 0 else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def expected_speedup(work: Work, threads: int = 1) -> float:
    """Return the predicted time of the dense operator divided by that of the sparse one.

    >>> expected_speedup(Work(512, 512, 512 * 512, 512 * 26, pixels=64, images=0)) > 4
    True
    """
    return _dense_time(work, threads) / _sparse_time(work, threads)


def layer_time(work: Work, density: float, threads: int = 1) -> float:
    """Return the nanoseconds of a layer as a session runs it: on sparse kernels if they are faster by the margin."""
    thinned = replace(work, nonzeros=max(1, round(density * work.weights)))
    dense, sparse = _dense_time(work, threads), _sparse_time(thinned, threads)
    return sparse if sparse < (1 - MARGIN) * dense else dense


def _dense_time(work: Work, threads: int) -> float:
    return _time(coefficients()[work.family]["dense"], work.dense(), (threads, DENSE_PART, DENSE_SHARE))


def _sparse_time(work: Work, threads: int) -> float:
    part = SPARSE_VECTOR_PART if work.family == "vector" else SPARSE_PART
    return _time(coefficients()[work.family]["sparse"], work.sparse(), (threads, part, SPARSE_SHARE))


def _time(costs: Mapping[str, float], amounts: Mapping[str, float], split: tuple[int, float, float]) -> float:
    """Return nanoseconds with so many threads: work is split if each part takes long enough, calls are not."""
    threads, part, share = split
    call = costs["call"] * amounts["call"]
    rest = sum(costs[name] * amount for name, amount in amounts.items()) - call
    parts = min(threads, max(1, int(rest / part)))
    return call + rest / (1 + (parts - 1) * share)


def runs_faster(layer: Layer, graph: Graph, threads: int = 1) -> bool:
    """Check that a layer is predicted to be faster by the margin for one batch size, and slower for none."""
    return _gains([work_of(layer, graph, batch) for batch in (ASSUMED_BATCH, LARGE_BATCH)], threads)


def _gains(works: Sequence[Work], threads: int) -> bool:
    expected = [expected_speedup(work, threads) for work in works]
    return max(expected) > 1 / (1 - MARGIN) and min(expected) > 1


def least_sparsity(layer: Layer, graph: Graph, threads: int = 1) -> float | None:
    """Return the share of zeros from which on a layer would be faster; None if it never is."""
    works = [work_of(layer, graph, batch) for batch in (ASSUMED_BATCH, LARGE_BATCH)]
    low, high = 0, works[0].weights  # of non-zeros, at which it is faster, and is not
    if not _gains([replace(work, nonzeros=low) for work in works], threads):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        faster = _gains([replace(work, nonzeros=middle) for work in works], threads)
        low, high = (middle, high) if faster else (low, middle)
    return 1 - low / max(works[0].weights, 1)


def profitable_layers(chosen: Sequence[Layer], found: Sequence[Layer], graph: Graph, threads: int = 1) -> list[Layer]:
    """Return the chosen layers, without convolutions if these save too little of the network's time."""
    convolutions = [layer for layer in found if layer.operator == "SparseConv"]
    before, after = 0.0, 0.0
    for layer in convolutions:
        work = work_of(layer, graph)
        dense = _dense_time(work, threads)
        before += dense
        after += dense / expected_speedup(work, threads) if layer in chosen else dense
    if after <= (1 - MIN_CONV_SAVING) * before:
        return list(chosen)
    return [layer for layer in chosen if layer.operator != "SparseConv"]
