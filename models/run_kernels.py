"""The compiled passes over a run of linear layers: all products in one call, with bias and ReLU between them."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rigl_compress.models.training_kernels import LayerKernel, LayerShape, loaded_library

_MESSAGE_SIZE = 200
_FLOAT = 4  # bytes
# The structs are those of native/train_run.h; native/train_api.cpp checks their sizes.


class _RunStage(Structure):
    _fields_ = (
        ("layer", c_void_p),
        ("outputs", c_int64),
        ("values", c_void_p),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("dy", c_void_p),
        ("dvalues", c_void_p),
        ("dbias", c_void_p),
        ("order", c_void_p),
        ("packed", c_void_p),
        ("has_relu", c_int64),
    )


class _RunCall(Structure):
    _fields_ = (
        ("stages", c_void_p),
        ("count", c_int64),
        ("batch", c_int64),
        ("x", c_void_p),
        ("dy", c_void_p),
        ("dx", c_void_p),
    )


@lru_cache
def _library() -> ctypes.CDLL:
    library = loaded_library()
    for function in (library.rigl_train_run_forward, library.rigl_train_run_backward):
        function.argtypes = [POINTER(_RunCall), c_int, c_char_p, c_size_t]
    return library


class FullKernel:
    """The kernels of a layer with all of its connections, whose weight is dense."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.kernel = LayerKernel(LayerShape(inputs, outputs, linear=True), torch.arange(inputs * outputs))
        self.order = self.kernel.order
        self.packed = torch.empty(inputs * outputs)


@dataclass(frozen=True)
class Stage:
    """A layer of a run: the kernels of its connections, or of a dense weight; and whether ReLU follows."""

    kernel: LayerKernel | FullKernel
    has_relu: bool

    @property
    def layer(self) -> LayerKernel:
        """The kernels of the connections."""
        return self.kernel if isinstance(self.kernel, LayerKernel) else self.kernel.kernel


@dataclass(frozen=True)
class Gradients:
    """The gradients of a run: of the input, and of the weight and bias of each stage; None where not needed.

    `outputs` are those of the output of all stages before ReLU, below each other.
    """

    x: Tensor | None
    parameters: list[Tensor | None]
    outputs: Tensor


class RunKernel:
    """The kernels of a run. Activations and gradients are [features, batch], contiguous.

    Few operations of Python: small networks spend more time in them than in the products.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = tuple(stages)  # keeps what the structs point to
        self._kind = _RunStage * len(stages)
        self._template = self._kind(*map(_struct, stages))
        self.outputs = [stage.layer.shape.outputs for stage in stages]
        self.rows = [sum(self.outputs[:index]) for index in range(len(stages) + 1)]
        self._error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        self._library = _library()

    def forward(self, x: Tensor, parameters: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """Return the outputs of all stages but the last, below each other, and that of the last."""
        batch = x.shape[1]
        inner, y = torch.empty(self.rows[-2], batch), torch.empty(self.outputs[-1], batch)
        stages = self._with_outputs(parameters, inner, y)
        self._run(self._library.rigl_train_run_forward, stages, (batch, x.data_ptr(), None, None))
        return inner, y

    def backward(
        self,
        parameters: Sequence[Tensor | None],
        activations: tuple[Tensor, Tensor, Tensor | None],
        dy: Tensor,
        needs: Any,
    ) -> Gradients:
        """Return the gradients that `needs` lists, of the input and the parameters.

        `activations` are the input and what `forward` returned; the last is needed only if ReLU follows the last stage.
        """
        x, inner, y = activations
        batch = x.shape[1]
        room = torch.empty(self.rows[-1], batch)
        found = [
            None if each is None or not need else torch.empty_like(each)
            for each, need in zip(parameters, needs[1:], strict=True)
        ]
        dx = torch.empty_like(x) if needs[0] else None
        stages, start = self._with_outputs(parameters, inner, y), room.data_ptr()
        for index, stage in enumerate(stages):
            stage.dy = start + _FLOAT * batch * self.rows[index]
            stage.dvalues, stage.dbias = _pointer(found[2 * index]), _pointer(found[2 * index + 1])
        self._run(self._library.rigl_train_run_backward, stages, (batch, x.data_ptr(), dy.data_ptr(), _pointer(dx)))
        return Gradients(dx, found, room)

    def _with_outputs(self, parameters: Sequence[Tensor | None], inner: Tensor, y: Tensor | None) -> Any:
        stages = self._kind.from_buffer_copy(self._template)
        start, row = inner.data_ptr(), _FLOAT * inner.shape[1]
        for index, stage in enumerate(stages):
            stage.values, stage.bias = _pointer(parameters[2 * index]), _pointer(parameters[2 * index + 1])
            stage.y = start + row * self.rows[index]
        stages[-1].y = _pointer(y)
        return stages

    def _run(self, function: Any, stages: Any, call: tuple[Any, ...]) -> None:
        request = _RunCall(ctypes.addressof(stages), len(stages), *call)
        if function(byref(request), torch.get_num_threads(), self._error, _MESSAGE_SIZE):
            raise RuntimeError(f"sparse kernels: {self._error.value.decode()}")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _struct(stage: Stage) -> _RunStage:
    found = _RunStage(layer=stage.layer.handle, outputs=stage.layer.shape.outputs, has_relu=stage.has_relu)
    if isinstance(stage.kernel, FullKernel):
        found.order, found.packed = stage.kernel.order.data_ptr(), stage.kernel.packed.data_ptr()
    return found
