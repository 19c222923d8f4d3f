"""What a layer costs, dense in ONNX Runtime and on sparse kernels: a small model, fitted to measurements.

`benchmarks/calibrate_costs.py` measures and writes `costs.json`. Only the order of two costs matters, and it moves
little from one machine to the next; what is not sure to gain is left alone.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from rigl_compress.runtime.graph import Graph, Shape
from rigl_compress.runtime.layers import Layer

COSTS = Path(__file__).with_name("costs.json")
# A sparse operator must be expected to save so much of a layer's time: the model is not exact.
MARGIN = 0.15
# Between dense and sparse convolutions images are rearranged: together they must save so much of all their time.
TOGETHER = 0.1
LANES = 8
# To copy a number that a Gather picks takes as long as so many products.
PICKED = {"vector": 80, "batched": 250}
# Where a shape is not known before the first run; a batch may then be of either size.
ASSUMED_BATCH, LARGE_BATCH, ASSUMED_SIDE = 1, 64, 14


@dataclass(frozen=True)
class Work:
    """The size of a layer: weights that are there, that are not zero, and how often they are used."""

    rows: int
    columns: int
    weights: int
    nonzeros: int
    taps: int = 1  # places of the filter
    pixels: int = 1  # of one image's output, or samples of a batch
    images: int = 1
    stride: int = 1
    picked: int = 0  # inputs that are copied one by one before the dense operator

    @property
    def family(self) -> str:
        """The kind of kernel: each has numbers of its own."""
        if self.taps > 1:
            return "spatial"
        return "pointwise" if self.images else "vector" if self.pixels == 1 else "batched"

    @property
    def vectors(self) -> int:
        """How many vectors one row of the output takes."""
        return max(self.images, 1) * -(-self.pixels // LANES)

    def dense(self) -> dict[str, float]:
        """What the dense operator does: products, activations in and out, a call."""
        moved = (self.columns / self.taps * self.stride**2 + self.rows) * self.pixels * max(self.images, 1)
        weights = self.weights + self.picked * PICKED.get(self.family, 0)
        return {"products": weights * self.pixels * max(self.images, 1), "moved": moved, "call": 1.0}

    def sparse(self) -> dict[str, float]:
        """What the sparse operator does: products, columns packed, rows begun and ended, a call."""
        read = self.columns * (self.vectors + (self.stride > 1) * self.stride * self.vectors)
        return {"products": self.nonzeros * self.vectors, "read": read, "rows": self.rows * self.vectors, "call": 1.0}


def work_of(layer: Layer, graph: Graph, batch: int = ASSUMED_BATCH) -> Work:
    """Measure a layer; axes that are not known are assumed."""
    rows, columns = layer.matrix.shape
    sizes = {"weights": layer.weights, "nonzeros": int(np.count_nonzero(layer.matrix))}
    if layer.operator != "SparseConv":
        return Work(rows, columns, **sizes, pixels=_samples(layer, graph, batch), images=0, picked=layer.picked)
    shape = graph.shape(layer.nodes[0].output[0])
    kernel, strides = layer.settings["kernel_shape"], layer.settings["strides"]
    images, pixels = _image(shape, len(kernel))
    if pixels == prod(kernel) == 1:  # the kernels of products serve it
        return Work(rows, columns, **sizes, pixels=images, images=0)
    return Work(rows, columns, **sizes, taps=prod(kernel), pixels=pixels, images=images, stride=max(strides))


def _samples(layer: Layer, graph: Graph, batch: int) -> int:
    """Tell how many vectors are multiplied at once; the state of a recurrent layer has one for each sample."""
    shape = graph.shape(layer.projection.x if layer.projection else layer.x)
    if not shape:
        return batch
    axes = shape[1:-1] if layer.projection else shape[:-1]
    return prod(_length(axis, batch if place == 0 else ASSUMED_BATCH) for place, axis in enumerate(axes))


def _image(shape: Shape | None, axes: int) -> tuple[int, int]:
    lengths = shape or ("",) * (axes + 2)
    return _length(lengths[0], ASSUMED_BATCH), prod(_length(axis, ASSUMED_SIDE) for axis in lengths[2:])


def _length(axis: int | str, otherwise: int) -> int:
    return axis if isinstance(axis, int) and axis > 0 else otherwise


@lru_cache
def coefficients() -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Give nanoseconds for each thing done, by family, dense and sparse."""
    families: dict[str, dict[str, dict[str, float]]] = json.loads(COSTS.read_text(encoding="utf-8"))["families"]
    return families


def expected_gain(work: Work) -> float:
    """Give the time of the dense operator in parts of the sparse one's.

    >>> expected_gain(Work(512, 512, 512 * 512, 512 * 26, pixels=64, images=0)) > 4
    True
    """
    found = coefficients()[work.family]
    return _time(found["dense"], work.dense()) / _time(found["sparse"], work.sparse())


def _time(prices: Mapping[str, float], amounts: Mapping[str, float]) -> float:
    return sum(prices[name] * amount for name, amount in amounts.items())


def gains(layer: Layer, graph: Graph) -> bool:
    """Tell whether a layer is sure enough to be faster: for one batch by the margin, and slower for none."""
    expected = [expected_gain(work_of(layer, graph, batch)) for batch in (ASSUMED_BATCH, LARGE_BATCH)]
    return max(expected) > 1 / (1 - MARGIN) and min(expected) > 1


def saving_together(chosen: Sequence[Layer], found: Sequence[Layer], graph: Graph) -> list[Layer]:
    """Give the layers that were chosen, without convolutions if these save too little of a network."""
    convolutions = [layer for layer in found if layer.operator == "SparseConv"]
    before, after = 0.0, 0.0
    for layer in convolutions:
        work = work_of(layer, graph)
        dense = _time(coefficients()[work.family]["dense"], work.dense())
        before += dense
        after += dense / expected_gain(work) if layer in chosen else dense
    if after <= (1 - TOGETHER) * before:
        return list(chosen)
    return [layer for layer in chosen if layer.operator != "SparseConv"]
