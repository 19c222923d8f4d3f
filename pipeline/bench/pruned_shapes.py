"""The paper's bytes of a file that has zeros in the place of pruned units: by its convention these cost nothing."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.exporters.contents import count_nonzeros
from rigl_compress.exporters.costs import GraphCosts
from rigl_compress.exporters.sizes import layer_bytes

Array = NDArray[Any]


def with_pruned_shapes(costs: GraphCosts, arrays: Mapping[str, Array], shapes: Any) -> GraphCosts:
    """Give the costs with the bit-masks of what was pruned; `shapes`: those that tensors have in the pruned network.

    A file can come from anywhere: what it says counts only as far as the rest of its weights is zero.

    >>> wide = np.zeros((8, 10), np.float32)
    >>> wide[:, :4] = np.eye(8, 4)
    >>> found = with_pruned_shapes(GraphCosts((), {}, 80, 4, 4 * 4 + 80 / 8), {"w": wide}, {"w": [8, 4]})
    >>> found.bitmask_bytes == 4 * 4 + 8 * 4 / 8
    True
    """
    if not isinstance(shapes, dict):
        return costs
    saved = sum(_saved(_named(name, arrays), shape) for name, shape in shapes.items())
    return replace(costs, bitmask_bytes=costs.bitmask_bytes - saved)


def _named(name: str, arrays: Mapping[str, Array]) -> Array | None:
    return arrays.get(name, arrays[turned].T if (turned := f"{name}.T") in arrays else None)


def _saved(array: Array | None, shape: Any) -> float:
    """Give the bytes that a tensor would not have in its pruned shape."""
    if array is None or not isinstance(shape, list) or len(shape) != array.ndim:
        return 0.0
    if not all(isinstance(s, int) and 0 < s <= size for s, size in zip(shape, array.shape, strict=True)):
        return 0.0
    if any(_used(array, axis) > size for axis, size in enumerate(shape)):
        return 0.0
    if array.ndim == 1:  # a vector needs no mask
        return layer_bytes(array.size, array.size) - layer_bytes(shape[0], shape[0])
    alive = count_nonzeros(array)
    return layer_bytes(array.size, alive) - layer_bytes(prod(shape), alive)


def _used(array: Array, axis: int) -> int:
    """Count the places along an axis that are not zero all over."""
    return int(np.count_nonzero(np.any(array != 0, axis=tuple(each for each in range(array.ndim) if each != axis))))
