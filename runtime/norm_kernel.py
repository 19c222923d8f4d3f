"""The kernel of layer normalization, called on arrays."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.runtime.kernels import _MESSAGE_SIZE, _data, _library
from rigl_compress.runtime.tile_arrays import from_tiles, to_tiles

Array = NDArray[Any]


class _LayerNormCall(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("residual", c_void_p),
        ("scale", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("sum", c_void_p),
        ("rows", c_size_t),
        ("size", c_size_t),
        ("epsilon", c_float),
        ("x_by_column", c_bool),
        ("residual_by_column", c_bool),
        ("y_by_column", c_bool),
        ("sum_by_column", c_bool),
    )


class LayerNorm:
    """Layer normalization over the last axis, after adding a residual.

    >>> LayerNorm(np.ones(2, np.float32))(np.array([[1, 3]], np.float32))[0].round(3)
    array([[-1.,  1.]], dtype=float32)
    """

    def __init__(self, scale: Array, bias: Array | None = None, kernels: str = "", *, epsilon: float = 1e-5) -> None:
        self.scale, self.bias, self.kernels, self.epsilon = scale, bias, kernels.encode(), epsilon
        self._run = _library().rigl_layer_norm_run
        self._run.argtypes = [POINTER(_LayerNormCall), c_char_p, c_int, c_char_p, c_size_t]

    def __call__(
        self, x: Array, residual: Array | None = None, *, by_column: Sequence[str] = (), threads: int = 1
    ) -> tuple[Array, Array]:
        """Return the normalized vectors, and the sum of x and the residual.

        Those of x, residual, y and sum that are in `by_column` are stored in tiles of columns.
        """
        marked = [name in by_column for name in ("x", "residual", "y", "sum")]
        size = len(self.scale)
        x = np.ascontiguousarray(self._stored(x, "x" in by_column), dtype=np.float32)
        residual = None if residual is None else self._stored(residual, "residual" in by_column)
        y, total = np.empty_like(x), np.empty_like(x)
        given = (_data(x), _data(residual), _data(self.scale), _data(self.bias), _data(y), _data(total))
        error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        call = _LayerNormCall(*given, x.size // size, size, self.epsilon, *marked)
        if self._run(call, self.kernels, threads, error, len(error)):
            raise RuntimeError(error.value.decode())
        return self._rows(y, "y" in by_column), self._rows(total, "sum" in by_column)

    def _stored(self, x: Array, by_column: bool) -> Array:
        return to_tiles(x.reshape(-1, len(self.scale)), self.kernels.decode()) if by_column else x

    def _rows(self, x: Array, by_column: bool) -> Array:
        return from_tiles(x.reshape(-1, len(self.scale)), self.kernels.decode()).reshape(x.shape) if by_column else x
