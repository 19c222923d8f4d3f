"""Arrays in tiles of columns, as operators keep them between each other: see native/tiles.h."""

from ctypes import c_char_p, c_size_t
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.runtime.kernel_library import load_library, unavailable_reason

Array = NDArray[Any]


def to_tiles(x: Array, kernels: str = "") -> Array:
    """Store vectors [count, features] in tiles of columns: the same shape, in another order."""
    parts = [x[tile].T.ravel() for tile in _tiles(len(x), kernels)]
    return np.concatenate(parts).reshape(x.shape) if parts else x


def from_tiles(x: Array, kernels: str = "") -> Array:
    """Return the vectors of which `to_tiles` makes this array."""
    parts = [x[tile].reshape(x.shape[1], -1).T for tile in _tiles(len(x), kernels)]
    return np.ascontiguousarray(np.concatenate(parts)) if parts else x


def _tiles(count: int, kernels: str) -> list[slice]:
    library = load_library()
    if library is None:
        raise InputError(unavailable_reason())
    library.rigl_tile_width.argtypes = [c_char_p, c_size_t]
    width = library.rigl_tile_width(kernels.encode(), count)
    return [slice(first, min(first + width, count)) for first in range(0, count, width)]
