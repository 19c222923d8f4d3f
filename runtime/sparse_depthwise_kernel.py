"""The kernel of a sparse 1×1 convolution and the depthwise one that reads it, called on arrays."""

from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_size_t, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.runtime.kernels import (
    _ERROR,
    ACTIVATIONS,
    NO_LIMITS,
    Limits,
    Window,
    _conv_shape,
    _ConvCall,
    _ConvShape,
    _data,
    _Kernel,
    _library,
)
from rigl_compress.runtime.packed_weights import pack_matrix

Array = NDArray[Any]


class _Call(Structure):
    _fields_ = (
        ("conv", _ConvCall),
        ("inner_bias", c_void_p),
        ("inner_low", c_float),
        ("inner_high", c_float),
        ("inner_activation", c_int32),
        ("means", c_void_p),
    )


class SparseDepthwise:
    """A sparse matrix [channels, inputs] applied to each pixel, then filters [channels, 1, height, width]."""

    def __init__(self, matrix: Array, filters: Array, window: Window | None = None, kernels: str = "") -> None:
        _declare()
        packed, self.window, self.kernel = pack_matrix(matrix).tobytes(), window or Window(), filters.shape[2:]
        filters, shape = np.ascontiguousarray(filters, dtype=np.float32), _conv_shape(self.window, self.kernel)
        self.channels = len(filters)
        self._kernel = _Kernel("sparse_depthwise", kernels, packed, len(packed), _data(filters), shape)

    def __call__(
        self,
        x: Array,
        biases: tuple[Array | None, Array | None] = (None, None),
        activations: tuple[str, str] = ("", ""),
        limits: tuple[Limits, Limits] = (NO_LIMITS, NO_LIMITS),
        *,
        threads: int = 1,
    ) -> tuple[Array, Array]:
        """Return the filtered images and the means of their channels; pairs are of the matrix and of the filters."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        batch, _, height, width = x.shape
        y = np.empty((batch, self.channels, *self.window.output((height, width), self.kernel)), dtype=np.float32)
        means = np.empty((batch, self.channels, 1, 1), dtype=np.float32)
        inner, outer = (ACTIVATIONS.index(name) for name in activations)
        outer_call = _ConvCall(_data(x), batch, height, width, _data(biases[1]), None, _data(y), *limits[1], outer)
        self._kernel.run(_Call(outer_call, _data(biases[0]), *limits[0], inner, _data(means)), threads)
        return y, means


def _declare() -> None:
    library = _library()
    library.rigl_sparse_depthwise_create.restype = c_void_p
    arguments = [c_char_p, c_size_t, c_void_p, POINTER(_ConvShape), c_char_p, *_ERROR]
    library.rigl_sparse_depthwise_create.argtypes = arguments
    library.rigl_sparse_depthwise_run.argtypes = [c_void_p, POINTER(_Call), c_int, *_ERROR]
    library.rigl_sparse_depthwise_destroy.argtypes = [c_void_p]
