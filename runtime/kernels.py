"""The kernels called on arrays, without ONNX Runtime: for tests, benchmarks and direct use."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.runtime.kernel_library import load_library, unavailable_reason
from rigl_compress.runtime.packed_weights import conv_matrix, pack_matrix
from rigl_compress.runtime.tile_arrays import from_tiles, to_tiles

Array = NDArray[Any]
Limits = tuple[float, float]
NO_LIMITS: Limits = (-np.inf, np.inf)
# What an epilogue applies to its output, in the order of native/kernels.h.
ACTIVATIONS = ("", "gelu", "gelu-tanh", "silu", "sigmoid", "tanh", "hard-swish")
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
_MESSAGE_SIZE = 200
# The structs are those of native/c_api.cpp, which checks their size and offsets.


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
        ("activation", c_int32),
    )


class _ConvShape(Structure):
    # Kernel, stride, dilation, padding before and after; for rows, then for columns.
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
        ("activation", c_int32),
        ("scale", c_void_p),
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


_SIGNATURES: dict[str, tuple[list[Any], type[Structure]]] = {
    "matmul": ([c_char_p, c_size_t], _MatMulCall),
    "conv": ([c_char_p, c_size_t, POINTER(_ConvShape)], _ConvCall),
    "depthwise": ([c_void_p, c_size_t, POINTER(_ConvShape)], _ConvCall),
    "gru": ([c_char_p, c_size_t, POINTER(_GruShape)], _GruCall),
}
_ERROR: list[Any] = [c_char_p, c_size_t]  # a buffer for the message


@lru_cache
def _library() -> ctypes.CDLL:
    library = load_library()
    if library is None:
        raise InputError(unavailable_reason())
    library.rigl_kernels_name.restype = c_char_p
    library.rigl_has_kernels.argtypes = [c_char_p]
    library.rigl_check_packed.argtypes = [c_char_p, c_size_t, *_ERROR]
    for name, (arguments, call) in _SIGNATURES.items():
        create, run, destroy = (getattr(library, f"rigl_{name}_{step}") for step in ("create", "run", "destroy"))
        create.restype, create.argtypes = c_void_p, [*arguments, c_char_p, *_ERROR]
        run.argtypes = [c_void_p, POINTER(call), c_int, *_ERROR]
        destroy.argtypes = [c_void_p]
    return library


class _Kernel:
    """A kernel of the library, destroyed together with this object."""

    _handle: int | None = None

    def __init__(self, name: str, kernels: str, *arguments: Any) -> None:
        if kernels and kernels not in kernel_sets():
            raise InputError(f"no kernels {kernels!r} on this machine: choose one of {', '.join(kernel_sets())}")
        create, self._run, self._destroy = (
            getattr(_library(), f"rigl_{name}_{step}") for step in ("create", "run", "destroy")
        )
        error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        self._handle = create(*arguments, kernels.encode(), error, len(error))
        if not self._handle:
            raise InputError(error.value.decode())

    def run(self, call: Structure, threads: int) -> None:
        """Run with the work split as for a number of threads."""
        error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        if self._run(self._handle, call, threads, error, len(error)):
            raise RuntimeError(error.value.decode())

    def __del__(self) -> None:
        if self._handle:
            self._destroy(self._handle)


def kernel_sets() -> list[str]:
    """Return the instruction sets with kernels that run on this machine."""
    return [name for name in INSTRUCTION_SETS if _library().rigl_has_kernels(name.encode())]


def chosen_set() -> str:
    """Return the instruction set whose kernels run by default."""
    name: bytes = _library().rigl_kernels_name()
    return name.decode()


def check_packed(packed: bytes) -> str:
    """Return what is invalid about packed weights, or an empty string."""
    error = ctypes.create_string_buffer(_MESSAGE_SIZE)
    _library().rigl_check_packed(packed, len(packed), error, len(error))
    return error.value.decode()


@dataclass(frozen=True)
class Window:
    """How a filter moves over an image: a value per axis, and padding before and after each axis."""

    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    groups: int = 1

    def output(self, size: Sequence[int], kernel: Sequence[int]) -> tuple[int, int]:
        """Return the height and width of the output; below 1 where the filter does not fit.

        >>> Window(strides=(2, 2), pads=(1, 1, 1, 1)).output((56, 56), (3, 3))
        (28, 28)
        """
        lengths = [
            (size[a] + self.pads[a] + self.pads[a + 2] - self.dilations[a] * (kernel[a] - 1) - 1) // self.strides[a] + 1
            for a in range(2)
        ]
        return lengths[0], lengths[1]


class MatMul:
    """A sparse matrix product with its epilogue: `activation(clip(x @ matrix.T + bias))`.

    >>> MatMul(np.eye(2, dtype=np.float32))(np.array([[3, 4]], dtype=np.float32))
    array([[3., 4.]], dtype=float32)
    """

    def __init__(self, matrix: Array, kernels: str = "", activation: str = "", scales: Sequence[Array] = ()) -> None:
        packed = pack_matrix(matrix, scales).tobytes()
        self._kernel = _Kernel("matmul", kernels, packed, len(packed))
        self.rows, self.activation, self.kernels = matrix.shape[0], ACTIVATIONS.index(activation), kernels

    def __call__(
        self, x: Array, bias: Array | None = None, limits: Limits = NO_LIMITS, *, by_column: str = "", threads: int = 1
    ) -> Array:
        """Multiply [batch, columns]; "x" or "y" in `by_column` marks an array that is stored in tiles of columns."""
        marked = ("x" in by_column, "y" in by_column)
        x = np.ascontiguousarray(to_tiles(x, self.kernels) if marked[0] else x, dtype=np.float32)
        y = np.empty((len(x), self.rows), dtype=np.float32)
        call = _MatMulCall(_data(x), len(x), _data(bias), _data(y), *marked, *limits, self.activation)
        self._kernel.run(call, threads)
        return from_tiles(y, self.kernels) if marked[1] else y


class Conv:
    """A sparse convolution of images [batch, channels, height, width]."""

    def __init__(self, weight: Array, window: Window | None = None, kernels: str = "", activation: str = "") -> None:
        self.window, self.rows, self.kernel = window or Window(), weight.shape[0], weight.shape[2:]
        self.activation = ACTIVATIONS.index(activation)
        packed = pack_matrix(conv_matrix(weight, self.window.groups)).tobytes()
        self._kernel = _Kernel("conv", kernels, packed, len(packed), _conv_shape(self.window, self.kernel))

    def __call__(
        self,
        x: Array,
        bias: Array | None = None,
        residual: Array | None = None,
        limits: Limits = NO_LIMITS,
        *,
        scale: Array | None = None,
        threads: int = 1,
    ) -> Array:
        """Convolve, add bias and residual, and clip to the limits. `scale` has a factor per image and channel of x."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        batch, _, height, width = x.shape
        y = np.empty((batch, self.rows, *self.window.output((height, width), self.kernel)), dtype=np.float32)
        given = (_data(x), batch, height, width, _data(bias), _data(residual), _data(y))
        call = _ConvCall(*given, *limits, self.activation, _data(scale))
        self._kernel.run(call, threads)
        return y


class Depthwise:
    """A dense depthwise convolution, with weights [channels, 1, height, width]."""

    def __init__(self, weight: Array, window: Window | None = None, kernels: str = "", activation: str = "") -> None:
        self.window, self.kernel, self.activation = window or Window(), weight.shape[2:], ACTIVATIONS.index(activation)
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        shape = _conv_shape(self.window, self.kernel)
        self._kernel = _Kernel("depthwise", kernels, _data(weight), weight.size, shape)

    def __call__(self, x: Array, bias: Array | None = None, limits: Limits = NO_LIMITS, *, threads: int = 1) -> Array:
        """Convolve each channel, add its bias, and clip to the limits."""
        x = np.ascontiguousarray(x, dtype=np.float32)
        batch, channels, height, width = x.shape
        y = np.empty((batch, channels, *self.window.output((height, width), self.kernel)), dtype=np.float32)
        call = _ConvCall(_data(x), batch, height, width, _data(bias), None, _data(y), *limits, self.activation)
        self._kernel.run(call, threads)
        return y


class Gru:
    """The recurrent half of a GRU: a sparse matrix [directions · 3 · size, size] for update, reset and candidate.

    `backward` has a value per direction: true where it runs from the last step to the first. `reset_after` applies the
    reset gate after the product of the state, as torch does, instead of before it.
    """

    def __init__(
        self, matrix: Array, kernels: str = "", *, backward: Sequence[bool] = (False,), reset_after: bool = True
    ) -> None:
        packed = pack_matrix(matrix).tobytes()
        shape = _GruShape(len(backward), (c_int32 * 2)(*backward), reset_after)
        self._kernel = _Kernel("gru", kernels, packed, len(packed), shape)
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
        """Take the products of the inputs, [steps, batch, directions · 3 · size]; return all states and the last ones.

        Shapes are those of ONNX: [steps, directions, batch, size] and [directions, batch, size]. Lengths are int32.
        """
        x = np.ascontiguousarray(x, dtype=np.float32)
        steps, batch = x.shape[:2]
        y = np.empty((steps, self.directions, batch, self.size), np.float32)
        last = np.empty((self.directions, batch, self.size), np.float32)
        optional = (_data(bias), _data(initial), _data(lengths))
        self._kernel.run(_GruCall(_data(x), steps, batch, *optional, _data(y), _data(last)), threads)
        return y, last


def _conv_shape(window: Window, kernel: Sequence[int]) -> _ConvShape:
    axes = ((kernel[a], window.strides[a], window.dilations[a], window.pads[a], window.pads[a + 2]) for a in range(2))
    return _ConvShape((c_int64 * 10)(*(number for axis in axes for number in axis)))


def _data(array: Array | None) -> int | None:
    return None if array is None else array.ctypes.data
