"""The paper's bytes of a file that reads inputs which nothing needs: by its convention they cost nothing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.exporters.contents import count_nonzeros
from rigl_compress.exporters.costs import GraphCosts
from rigl_compress.exporters.sizes import layer_bytes

Array = NDArray[Any]


def without_dead_inputs(costs: GraphCosts, arrays: Mapping[str, Array], dead: Any) -> GraphCosts:
    """Give the costs with the bit-mask of what was pruned; `dead`: how many inputs of which weight nothing needs.

    A file can come from anywhere: what it says counts only as far as its weights have so many columns of zeros.

    >>> wide = np.zeros((8, 10), np.float32)
    >>> wide[:, :4] = np.eye(8, 4)
    >>> found = without_dead_inputs(GraphCosts((), {}, 80, 4, 4 * 4 + 80 / 8), {"w": wide}, {"w": 6})
    >>> found.bitmask_bytes == 4 * 4 + 8 * 4 / 8
    True
    """
    if not isinstance(dead, dict):
        return costs
    saved = sum(_saved(name, count, arrays) for name, count in dead.items())
    return replace(costs, bitmask_bytes=costs.bitmask_bytes - saved)


def _saved(name: str, count: Any, arrays: Mapping[str, Array]) -> float:
    """Give the bytes of the mask that a weight would not have without its dead inputs."""
    array = arrays.get(name, arrays[turned].T if (turned := f"{name}.T") in arrays else None)
    if array is None or array.ndim < 2 or not isinstance(count, int):
        return 0.0
    empty = ~np.any(array != 0, axis=(0, *range(2, array.ndim)))
    if not 0 < count <= np.count_nonzero(empty) or count == array.shape[1]:
        return 0.0
    alive, each = count_nonzeros(array), array.size // array.shape[1]
    return layer_bytes(array.size, alive) - layer_bytes(array.size - count * each, alive)
