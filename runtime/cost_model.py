"""The cost model: predicts the time of a layer, dense in ONNX Runtime and on sparse kernels.

`benchmarks/calibrate_costs.py` fits `costs.json` to measurements, for each instruction set of the kernels, and
`rigl-compress calibrate` the costs of the user's own machine, which are preferred. "families" and "threads" are used
here; "kernels" is compiled into the kernels, which decide by it how many threads to use. Only the ratio of two costs
matters, and it changes little between machines of the same instruction set; a layer without a clear speedup stays
dense.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from rigl_compress.runtime.cost_tables import LANES, Split, coefficients, instruction_set, thread_costs
from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, Shape

# The minimum predicted saving of a layer's time: the model is not exact.
MARGIN = 0.15
# The minimum predicted saving of all convolutions: images change layout between dense and sparse ones.
MIN_CONV_SAVING = 0.15
# Vectors in a tile of the kernels (native/kernels.h); weights beyond which the caches hold few of them, and
# non-zeros that a single vector looks up in registers (native/plan.cpp).
TILE_VECTORS, CACHED_WEIGHTS, CACHED_NONZEROS = 8, 2**21, 2**20
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
    def outputs(self) -> int:
        """Outputs of a row of weights."""
        return self.pixels * max(self.images, 1)

    @property
    def inputs(self) -> float:
        """Pixels or samples read."""
        return self.columns / self.taps * self.stride**2 * self.outputs

    def dense(self) -> dict[str, float]:
        """Return the amounts of work of the dense operator.

        Products, activations moved, inputs copied by a Gather, weights read where they are used several times, those
        beyond the cache, calls.
        """
        return {
            "products": float(self.weights * self.outputs),
            "gathered": float(self.gathered * self.outputs),
            "moved": self.inputs + self.rows * self.outputs,
            "weights": float(self.weights if self.outputs > 1 else 0),
            "far": float(max(self.weights - CACHED_WEIGHTS, 0)),
            "call": 1.0,
        }

    def sparse(self, lanes: int) -> dict[str, float]:
        """Return the amounts of work of the sparse operator, with so many numbers in a vector.

        Vectors of products, non-zeros read and columns packed for each tile, vectors of rows, pixels rearranged for a
        stride, weights passed over by a single vector, non-zeros beyond the cache, calls.
        """
        vectors = max(self.images, 1) * -(-self.pixels // lanes)
        tiles = max(self.images, 1) * -(-self.pixels // (lanes * TILE_VECTORS))
        return {
            "products": float(self.nonzeros * vectors),
            "nonzeros": float(self.nonzeros * tiles if self.outputs > 1 else 0),
            "columns": float(self.columns * tiles if self.outputs > 1 else 0),
            "rows": float(self.rows * vectors),
            "strided": self.inputs if self.stride > 1 else 0.0,
            "weights": float(self.weights if self.outputs == 1 else 0),
            "far": float(self.nonzeros * tiles if self.nonzeros > CACHED_NONZEROS else 0),
            "call": 1.0,
        }


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
    return predicted_time(coefficients()[work.family]["dense"], work.dense(), threads, thread_costs().dense)


def _sparse_time(work: Work, threads: int) -> float:
    split = thread_costs().vector if work.family == "vector" else thread_costs().sparse
    amounts = work.sparse(LANES[instruction_set()])
    return predicted_time(coefficients()[work.family]["sparse"], amounts, threads, split)


def predicted_time(costs: Mapping[str, float], amounts: Mapping[str, float], threads: int, split: Split) -> float:
    """Return nanoseconds with so many threads: work is split if each part takes long enough, calls are not.

    >>> split = Split(work=50, share=0.25, start=3)
    >>> [predicted_time({"products": 1, "call": 5}, {"products": 100, "call": 1}, count, split) for count in (1, 2)]
    [105.0, 88.0]
    """
    call = costs["call"] * amounts["call"]
    rest = sum(costs[name] * amount for name, amount in amounts.items()) - call
    parts = min(threads, max(1, int(rest / split.work)))
    return call + (split.start if parts > 1 else 0.0) + rest / (1 + (parts - 1) * split.share)


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
