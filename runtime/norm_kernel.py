"""The kernel of layer normalization, called on arrays."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_size_t, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.runtime.kernels import _MESSAGE_SIZE, _data, _library

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

    def __call__(self, x: Array, residual: Array | None = None, *, threads: int = 1) -> tuple[Array, Array]:
        """Return the normalized vectors, and the sum of x and the residual."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        y, total, size = np.empty_like(x), np.empty_like(x), len(self.scale)
        given = (_data(x), _data(residual), _data(self.scale), _data(self.bias), _data(y), _data(total))
        error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        call = _LayerNormCall(*given, x.size // size, size, self.epsilon)
        if self._run(call, self.kernels, threads, error, len(error)):
            raise RuntimeError(error.value.decode())
        return y, total
