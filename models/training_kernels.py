"""The compiled kernels of sparse layers in training, called on tensors."""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.core.native_library import is_truncated, library_path

VERSION = 3  # of the functions below: the same as in native/train_api.cpp
_MESSAGE_SIZE = 200
# The structs are those of native/train_call.h and train_growth.h; native/train_api.cpp checks their sizes.


class _Shape(Structure):
    _fields_ = (
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("groups", c_int64),
        ("kernel", c_int64 * 2),
        ("stride", c_int64 * 2),
        ("pad", c_int64 * 2),
        ("dilation", c_int64 * 2),
        ("linear", c_int64),
    )


class _Call(Structure):
    _fields_ = (
        ("height", c_int64),
        ("width", c_int64),
        ("batch", c_int64),
        ("x", c_void_p),
        ("values", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("dy", c_void_p),
        ("dx", c_void_p),
        ("dvalues", c_void_p),
    )


class _GrowthBlock(Structure):
    _fields_ = (
        ("gradient", c_void_p),
        ("count", c_size_t),
        ("start", c_int64),
        ("kept", c_void_p),
        ("kept_count", c_size_t),
    )


class _GrowthCandidates(Structure):
    _fields_ = (("lowest", c_float), ("positions", c_void_p), ("magnitudes", c_void_p))


@dataclass(frozen=True)
class LayerShape:
    """The shape of a layer: channels and, of a convolution, its window as (rows, columns)."""

    inputs: int
    outputs: int
    groups: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    linear: bool = False  # all pixels are samples of its batch

    def output(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of the output for an input.

        >>> LayerShape(1, 1, kernel=(3, 3), stride=(2, 2), padding=(1, 1)).output((8, 7))
        (4, 4)
        """
        lengths = [
            (size[a] + 2 * self.padding[a] - self.dilation[a] * (self.kernel[a] - 1) - 1) // self.stride[a] + 1
            for a in range(2)
        ]
        return lengths[0], lengths[1]


@lru_cache
def training_library() -> ctypes.CDLL | None:
    """Load the library; return None if it is missing, does not load on this machine, or has another version."""
    path = library_path()
    try:
        library = None if path is None or is_truncated(path) else ctypes.CDLL(str(path))
        if library is None or library.rigl_train_version() != VERSION:
            return None
    except (OSError, AttributeError):
        return None
    error: list[Any] = [c_char_p, c_size_t]
    library.rigl_train_create.restype = c_void_p
    library.rigl_train_create.argtypes = [POINTER(_Shape), c_void_p, c_size_t, c_char_p, *error]
    library.rigl_train_order.argtypes = [c_void_p, c_void_p]
    for run in (library.rigl_train_forward, library.rigl_train_backward):
        run.argtypes = [c_void_p, POINTER(_Call), c_int, *error]
    library.rigl_train_norm.argtypes = [c_void_p, c_int, c_char_p, c_int, *error]
    library.rigl_train_destroy.argtypes = [c_void_p]
    library.rigl_train_candidates.restype = c_size_t
    library.rigl_train_candidates.argtypes = [POINTER(_GrowthBlock), POINTER(_GrowthCandidates), POINTER(c_int)]
    library.rigl_train_bound.restype = c_float
    library.rigl_train_bound.argtypes = [POINTER(_GrowthBlock), c_size_t]
    library.rigl_train_match.argtypes = [c_void_p, c_size_t, c_void_p, c_size_t, c_void_p]
    library.rigl_train_advise.argtypes = [c_void_p, c_size_t]
    library.rigl_train_transpose.argtypes = [c_void_p, c_size_t, c_size_t, c_void_p]
    return library


class LayerKernel:
    """The kernels of one layer and one topology, from the ascending flat positions of its connections.

    Activations and gradients have the batch innermost: [channels, height, width, batch], contiguous; or, of a linear
    layer, [features, batch].
    """

    _handle: int | None = None

    def __init__(self, shape: LayerShape, positions: Tensor, kernels: str = "") -> None:
        library = loaded_library()
        self._library, self.shape, self.size = library, shape, len(positions)
        numbers = (shape.inputs, shape.outputs, shape.groups)
        pairs = ((c_int64 * 2)(*each) for each in (shape.kernel, shape.stride, shape.padding, shape.dilation))
        error = self._error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        places = positions.to(torch.int64).contiguous()
        self._handle = library.rigl_train_create(
            _Shape(*numbers, *pairs, shape.linear), places.data_ptr(), len(places), kernels.encode(), error, len(error)
        )
        if not self._handle:
            raise InputError(f"no kernels for a layer of {astuple(shape)}: {error.value.decode()}")

    def __del__(self) -> None:
        if self._handle:
            self._library.rigl_train_destroy(self._handle)

    @property
    def handle(self) -> int | None:
        """The layer, as the library knows it."""
        return self._handle

    @property
    def order(self) -> Tensor:
        """Of each value, in the order in which the kernels read them: the index of its position."""
        order = torch.empty(self.size, dtype=torch.int64)
        self._library.rigl_train_order(self._handle, order.data_ptr())
        return order

    def forward(self, x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return the output."""
        height, width, batch = _image(x)
        size = (self.shape.outputs, batch) if x.dim() == 2 else (*self._output(height, width), batch)
        y = torch.empty(size)
        pointers = (x.data_ptr(), values.data_ptr(), None if bias is None else bias.data_ptr(), y.data_ptr())
        self._run(self._library.rigl_train_forward, _Call(height, width, batch, *pointers))
        return y

    def backward(
        self, x: Tensor, values: Tensor, dy: Tensor, *, needs_input: bool, needs_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of the input and of the values, where they are needed."""
        height, width, batch = _image(x)
        dx = torch.empty(x.shape) if needs_input else None
        dvalues = torch.empty(self.size) if needs_values else None
        results = (None if each is None else each.data_ptr() for each in (dx, dvalues))
        inputs = (x.data_ptr(), values.data_ptr(), None, None, dy.data_ptr())
        self._run(self._library.rigl_train_backward, _Call(height, width, batch, *inputs, *results))
        return dx, dvalues

    def _output(self, height: int, width: int) -> tuple[int, int, int]:
        return (self.shape.outputs, *self.shape.output((height, width)))

    def _run(self, function: Callable[..., int], call: _Call) -> None:
        if function(self._handle, byref(call), torch.get_num_threads(), self._error, _MESSAGE_SIZE):
            raise RuntimeError(f"sparse kernels: {self._error.value.decode()}")


def _image(x: Tensor) -> tuple[int, int, int]:
    """Return height, width and batch of [channels, height, width, batch], or of the [features, batch] of one pixel."""
    return (1, 1, x.shape[1]) if x.dim() == 2 else (x.shape[1], x.shape[2], x.shape[3])


@dataclass(frozen=True)
class Candidates:
    """What could grow: magnitudes and flat positions; whether the whole block is finite, and has any value but zero."""

    magnitudes: Tensor
    positions: Tensor
    finite: bool
    nonzero: bool


def growth_candidates(gradient: Tensor, start: int, kept: Tensor, lowest: float) -> Candidates:
    """Return what of a block of a gradient, from a flat position on, exceeds a magnitude and is not kept.

    `kept` are ascending flat positions. A negative `lowest` is exceeded by everything.
    """
    flat = gradient.contiguous().view(-1)
    magnitudes, positions = torch.empty(len(flat)), torch.empty(len(flat), dtype=torch.int64)
    block = _GrowthBlock(flat.data_ptr(), len(flat), start, kept.data_ptr(), len(kept))
    room, status = _GrowthCandidates(lowest, positions.data_ptr(), magnitudes.data_ptr()), c_int()
    count = loaded_library().rigl_train_candidates(byref(block), byref(room), byref(status))
    found = (magnitudes[:count].clone(), positions[:count].clone())
    return Candidates(*found, finite=bool(status.value & 1), nonzero=bool(status.value & 2))


def growth_bound(gradient: Tensor, start: int, kept: Tensor, wanted: int) -> float:
    """Return a magnitude that `wanted` of a block's connections exceed which are not kept; negative if none is known.

    >>> gradient = torch.arange(64.0)
    >>> growth_bound(gradient, 0, torch.tensor([63]), 1) > 61, growth_bound(gradient, 0, torch.tensor([63]), 3)
    (True, -1.0)
    """
    flat = gradient.contiguous().view(-1)
    block = _GrowthBlock(flat.data_ptr(), len(flat), start, kept.data_ptr(), len(kept))
    return float(loaded_library().rigl_train_bound(byref(block), wanted))


def matched(before: Tensor, now: Tensor) -> Tensor:
    """Return, for each of the ascending positions `now`, its index in the ascending positions `before`, or -1.

    >>> matched(torch.tensor([2, 5, 7]), torch.tensor([1, 2, 7])).tolist()
    [-1, 0, 2]
    """
    index, (old, new) = torch.empty(len(now), dtype=torch.int64), (each.contiguous() for each in (before, now))
    loaded_library().rigl_train_match(old.data_ptr(), len(old), new.data_ptr(), len(new), index.data_ptr())
    return index


def loaded_library() -> ctypes.CDLL:
    """Return the library; raise if it is missing."""
    library = training_library()
    if library is None:
        raise InputError("the compiled kernels are missing or do not load: install rigl-compress with a compiler")
    return library


def transposed(matrix: Tensor) -> Tensor:
    """Return the transpose of a contiguous matrix as a contiguous matrix."""
    library, (rows, columns) = training_library(), matrix.shape
    if library is None or matrix.dtype != torch.float32 or not matrix.is_cpu:
        return matrix.t().contiguous()
    result = torch.empty(columns, rows)
    library.rigl_train_transpose(matrix.data_ptr(), rows, columns, result.data_ptr())
    return result
