"""The kernels called on arrays, without ONNX Runtime: for tests, measurements, and whoever wants them alone."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.models.errors import InputError
from rigl_compress.runtime.library import load_library, why_not
from rigl_compress.runtime.packed import conv_matrix, pack_matrix

Array = NDArray[Any]
Limits = tuple[float, float]
NO_LIMITS: Limits = (-np.inf, np.inf)
SETS = ("portable", "avx2", "avx512")


class _MatMulCall(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("batch", c_size_t),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("x_by_column", c_bool),
        ("y_by_column", c_bool),
        ("low", c_float),
        ("high", c_float),
    )


class _ConvShape(Structure):
    # Kernel, stride, dilation, padding before and after: of rows, then of columns.
    _fields_ = (("axes", c_int64 * 10),)


class _ConvCall(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("batch", c_size_t),
        ("height", c_int64),
        ("width", c_int64),
        ("bias", c_void_p),
        ("residual", c_void_p),
        ("y", c_void_p),
        ("low", c_float),
        ("high", c_float),
    )


class _GruShape(Structure):
    _fields_ = (("directions", c_int32), ("backward", c_int32 * 2), ("reset_after", c_int32))


class _GruCall(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("steps", c_size_t),
        ("batch", c_size_t),
        ("bias", c_void_p),
        ("initial", c_void_p),
        ("lengths", c_void_p),
        ("y", c_void_p),
        ("last", c_void_p),
    )


@lru_cache
def _library() -> ctypes.CDLL:
    library = load_library()
    if library is None:
        raise InputError(why_not())
    library.rigl_kernels_name.restype = c_char_p
    library.rigl_has_kernels.argtypes = [c_char_p]
    library.rigl_check_packed.argtypes = [c_char_p, c_size_t, c_char_p, c_size_t]
    library.rigl_matmul_create.restype = c_void_p
    library.rigl_matmul_create.argtypes = [c_char_p, c_size_t, c_char_p]
    library.rigl_matmul_run.argtypes = [c_void_p, POINTER(_MatMulCall), c_int]
    library.rigl_matmul_destroy.argtypes = [c_void_p]
    library.rigl_conv_create.restype = c_void_p
    library.rigl_conv_create.argtypes = [c_char_p, c_size_t, POINTER(_ConvShape), c_char_p]
    library.rigl_conv_run.argtypes = [c_void_p, POINTER(_ConvCall), c_int]
    library.rigl_conv_destroy.argtypes = [c_void_p]
    library.rigl_depthwise_create.restype = c_void_p
    library.rigl_depthwise_create.argtypes = [c_void_p, c_size_t, POINTER(_ConvShape), c_char_p]
    library.rigl_depthwise_run.argtypes = [c_void_p, POINTER(_ConvCall), c_int]
    library.rigl_depthwise_destroy.argtypes = [c_void_p]
    library.rigl_gru_create.restype = c_void_p
    library.rigl_gru_create.argtypes = [c_char_p, c_size_t, POINTER(_GruShape), c_char_p]
    library.rigl_gru_run.argtypes = [c_void_p, POINTER(_GruCall), c_int]
    library.rigl_gru_destroy.argtypes = [c_void_p]
    return library


def kernel_sets() -> list[str]:
    """Give the names of the sets of instructions for which there are kernels on this machine."""
    return [name for name in SETS if _library().rigl_has_kernels(name.encode())]


def chosen_set() -> str:
    """Give the name of the set that is used unless another is asked for."""
    name: bytes = _library().rigl_kernels_name()
    return name.decode()


def check_packed(packed: bytes) -> str:
    """Say what is wrong with packed weights, or nothing."""
    told = ctypes.create_string_buffer(200)
    _library().rigl_check_packed(packed, len(packed), told, len(told))
    return told.value.decode()


@dataclass(frozen=True)
class Window:
    """How a filter moves over an image: one number for each axis, and padding before and after each."""

    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1

    def output(self, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Give the height and width of the output; below 1 where the filter does not fit.

        >>> Window(strides=(2, 2), pads=(1, 1, 1, 1)).output((56, 56), (3, 3))
        (28, 28)
        """
        lengths = [
            (size[a] + self.pads[a] + self.pads[a + 2] - self.dilations[a] * (kernel[a] - 1) - 1) // self.strides[a] + 1
            for a in range(2)
        ]
        return lengths[0], lengths[1]


class MatMul:
    """A sparse matrix, ready to be multiplied: `x @ matrix.T`, bias and limits included.

    >>> MatMul(np.eye(2, dtype=np.float32))(np.array([[3, 4]], dtype=np.float32))
    array([[3., 4.]], dtype=float32)
    """

    def __init__(self, matrix: Array, kernels: str = "") -> None:
        packed = pack_matrix(matrix).tobytes()
        self._destroy = _library().rigl_matmul_destroy
        self._handle = _library().rigl_matmul_create(packed, len(packed), kernels.encode())
        if not self._handle:
            raise InputError(f"no kernels {kernels!r} on this machine: choose one of {', '.join(kernel_sets())}")
        self.rows = matrix.shape[0]

    def __call__(
        self, x: Array, bias: Array | None = None, limits: Limits = NO_LIMITS, *, by_column: str = "", threads: int = 1
    ) -> Array:
        """Multiply [batch, columns]; with "x" or "y" in `by_column`, that one is transposed."""
        batch = x.shape["x" in by_column]
        x = np.ascontiguousarray(x, dtype=np.float32)
        y = np.empty((self.rows, batch) if "y" in by_column else (batch, self.rows), dtype=np.float32)
        call = _MatMulCall(_data(x), batch, _data(bias), _data(y), "x" in by_column, "y" in by_column, *limits)
        _library().rigl_matmul_run(self._handle, call, threads)
        return y

    def __del__(self) -> None:
        self._destroy(self._handle)


class Conv:
    """A sparse convolution, ready to be run on images [batch, channels, height, width]."""

    def __init__(self, weight: Array, window: Window | None = None, kernels: str = "") -> None:
        self.window, self.rows, self.kernel = window or Window(), weight.shape[0], weight.shape[2:]
        packed = pack_matrix(conv_matrix(weight, self.window.groups)).tobytes()
        self._destroy = _library().rigl_conv_destroy
        shape = _conv_shape(self.window, self.kernel)
        self._handle = _library().rigl_conv_create(packed, len(packed), shape, kernels.encode())
        if not self._handle:
            raise InputError(f"no kernels {kernels!r} on this machine: choose one of {', '.join(kernel_sets())}")

    def __call__(
        self,
        x: Array,
        bias: Array | None = None,
        residual: Array | None = None,
        limits: Limits = NO_LIMITS,
        *,
        threads: int = 1,
    ) -> Array:
        """Convolve, add bias and residual, cut off at the limits."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        batch, _, height, width = x.shape
        y = np.empty((batch, self.rows, *self.window.output((height, width), self.kernel)), dtype=np.float32)
        call = _ConvCall(_data(x), batch, height, width, _data(bias), _data(residual), _data(y), *limits)
        _library().rigl_conv_run(self._handle, call, threads)
        return y

    def __del__(self) -> None:
        self._destroy(self._handle)


class Depthwise:
    """A dense convolution with one filter for each channel, [channels, 1, height, width]."""

    def __init__(self, weight: Array, window: Window | None = None, kernels: str = "") -> None:
        self.window, self.kernel = window or Window(), weight.shape[2:]
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        self._destroy = _library().rigl_depthwise_destroy
        shape = _conv_shape(self.window, self.kernel)
        self._handle = _library().rigl_depthwise_create(_data(weight), weight.size, shape, kernels.encode())
        if not self._handle:
            raise InputError(f"no kernels {kernels!r} for such filters: choose one of {', '.join(kernel_sets())}")

    def __call__(self, x: Array, bias: Array | None = None, limits: Limits = NO_LIMITS, *, threads: int = 1) -> Array:
        """Convolve each channel, add its bias, cut off at the limits."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        batch, channels, height, width = x.shape
        y = np.empty((batch, channels, *self.window.output((height, width), self.kernel)), dtype=np.float32)
        call = _ConvCall(_data(x), batch, height, width, _data(bias), None, _data(y), *limits)
        _library().rigl_depthwise_run(self._handle, call, threads)
        return y

    def __del__(self) -> None:
        self._destroy(self._handle)


class Gru:
    """The recurrent half of a GRU: a sparse matrix [directions · 3 · size, size] for update, reset and new state.

    `backward` says for each direction whether it begins at the end, `reset_after` whether the state is reset after its
    product, as torch does, or before it.
    """

    def __init__(
        self, matrix: Array, kernels: str = "", *, backward: Sequence[bool] = (False,), reset_after: bool = True
    ) -> None:
        packed = pack_matrix(matrix).tobytes()
        shape = _GruShape(len(backward), (c_int32 * 2)(*backward), reset_after)
        self._destroy = _library().rigl_gru_destroy
        self._handle = _library().rigl_gru_create(packed, len(packed), shape, kernels.encode())
        if not self._handle:
            raise InputError(f"no kernels {kernels!r} on this machine: choose one of {', '.join(kernel_sets())}")
        self.size, self.directions = matrix.shape[1], len(backward)

    def __call__(
        self,
        x: Array,
        bias: Array | None = None,
        initial: Array | None = None,
        lengths: Array | None = None,
        *,
        threads: int = 1,
    ) -> tuple[Array, Array]:
        """Take inputs that were multiplied before, [steps, batch, directions · 3 · size]; give all states and the last.

        Shapes are those of ONNX: [steps, directions, batch, size] and [directions, batch, size]; lengths are of int32.
        """
        x = np.ascontiguousarray(x, dtype=np.float32)
        steps, batch = x.shape[:2]
        y = np.empty((steps, self.directions, batch, self.size), np.float32)
        last = np.empty((self.directions, batch, self.size), np.float32)
        given = (_data(bias), _data(initial), _data(lengths))
        _library().rigl_gru_run(self._handle, _GruCall(_data(x), steps, batch, *given, _data(y), _data(last)), threads)
        return y, last

    def __del__(self) -> None:
        self._destroy(self._handle)


def _conv_shape(window: Window, kernel: Sequence[int]) -> _ConvShape:
    axes = ((kernel[a], window.strides[a], window.dilations[a], window.pads[a], window.pads[a + 2]) for a in range(2))
    return _ConvShape((c_int64 * 10)(*(number for axis in axes for number in axis)))


def _data(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data
