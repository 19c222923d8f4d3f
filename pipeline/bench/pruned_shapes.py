"""Bytes by the paper's convention of a file with padding zeros in place of pruned units, which cost nothing."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.exporters.onnx_costs import GraphCosts
from rigl_compress.exporters.tensor_table import count_nonzeros
from rigl_compress.models.storage_size import layer_bytes

Array = NDArray[Any]


def with_pruned_shapes(costs: GraphCosts, arrays: Mapping[str, Array], shapes: Any) -> GraphCosts:
    """Return the costs with the bit-masks of the pruned network; `shapes`: those of its tensors.

    The file may be untrusted: its shapes are used only where the remaining weights are zero.

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
    """Return the bytes that a tensor saves in its pruned shape."""
    if array is None or not isinstance(shape, list) or len(shape) != array.ndim:
        return 0.0
    if not all(isinstance(s, int) and 0 < s <= size for s, size in zip(shape, array.shape, strict=True)):
        return 0.0
    if any(_used(array, axis) > size for axis, size in enumerate(shape)):
        return 0.0
    if array.ndim == 1:  # a vector needs no mask
        return layer_bytes(array.size, array.size) - layer_bytes(shape[0], shape[0])
    nonzeros = count_nonzeros(array)
    return layer_bytes(array.size, nonzeros) - layer_bytes(prod(shape), nonzeros)


def _used(array: Array, axis: int) -> int:
    """Count the slices along an axis that are not all zero."""
    return int(np.count_nonzero(np.any(array != 0, axis=tuple(each for each in range(array.ndim) if each != axis))))
