"""Layers that hold and compute their active connections alone: `nn.Linear` and `nn.Conv2d` during sparse training.

A layer is made sparse in place. It keeps its parameters as objects, so that optimizers and hooks keep theirs; its
weight becomes the vector of active values. `state_dict` still has the dense weight under its name.
"""

from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.innermost_layout import contiguous_rows
from rigl_compress.models.training_kernels import LayerKernel, LayerShape, transposed


class Wiring:
    """The connections of a layer by their ascending flat positions, and the kernels for them, made when needed."""

    def __init__(self, shape: torch.Size, layer: LayerShape, positions: Tensor) -> None:
        self.shape, self.layer, self.positions = shape, layer, positions
        self.version = 0  # counts changes of the topology
        self._kernel: LayerKernel | None = None
        self._places: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kernel": None}

    @property
    def size(self) -> int:
        """The number of connections, active or not."""
        return prod(self.shape)

    @property
    def kernel(self) -> LayerKernel:
        """The kernels of these connections."""
        if self._kernel is None:
            self._kernel = LayerKernel(self.layer, self.positions)
        return self._kernel

    @property
    def places(self) -> Tensor:
        """The flat positions in the order in which the kernels read the values."""
        if self._places is None:
            self._places = self.positions[self.kernel.order]
        return self._places

    def rewire(self, positions: Tensor) -> None:
        """Take other connections, by ascending flat positions."""
        self.positions, self._kernel, self._places = positions, None, None
        self.version += 1

    def gather(self, dense: Tensor) -> Tensor:
        """Return the values of a dense tensor at the connections, in the order of the kernels."""
        return dense.reshape(-1)[self.places]

    def dense(self, values: Tensor) -> Tensor:
        """Return the dense tensor of these values, in the order of the kernels."""
        found = torch.zeros(self.size, dtype=values.dtype)
        found[self.places] = values
        return found.view(self.shape)

    def ascending(self, values: Tensor) -> Tensor:
        """Return values in the order of their positions."""
        found = torch.empty_like(values)
        found[self.kernel.order] = values
        return found

    def packed(self, values: Tensor) -> Tensor:
        """Return values in the order of the kernels, from the order of their positions."""
        return values[self.kernel.order]


class SparseModule(nn.Module):
    """What sparse layers share: how the weight is saved and loaded, and what growth needs of a backward pass."""

    wiring: Wiring
    weight: Tensor
    bias: Tensor | None
    loaded: Tensor | None  # the dense weight that was loaded last, until the sparsifier has seen it
    recording: bool  # keep inputs and output gradients: the next update needs the gradient of all connections
    recorded: list[tuple[int, Tensor, Tensor]]  # backward pass, input, output gradient, as [channels, height, …, batch]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.wiring.dense(self.weight.detach())

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        dense = state_dict.get(f"{prefix}weight")
        if dense is not None and dense.shape == self.wiring.shape:
            self.loaded = dense.detach()
            state_dict[f"{prefix}weight"] = self.wiring.gather(self.loaded.to(self.weight.dtype))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def record(self, x: Tensor, dy: Tensor) -> None:
        """Remember one product of a backward pass; what was remembered before gradients were cleared is dropped."""
        task = torch._C._current_graph_task_id()
        cleared = self.weight.grad is None or not bool(self.weight.grad.any())
        self.recorded = [each for each in self.recorded if not cleared or each[0] == task]
        self.recorded.append((task, x, dy))

    def product(self, x: Tensor) -> Tensor:
        """Return the output for an input of [channels, height, width, batch]."""
        for name, tensor in (("weight", self.weight), ("input", x)):
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
                raise InputError(
                    f"sparse kernels got a {name} of {tensor.dtype} on {tensor.device}, expected torch.float32 on the "
                    'CPU: train with kernels="masked"'
                )
        return product_of(x, self.weight, self.bias, self)

    def extra_repr(self) -> str:
        """Return the layer's own description and its number of connections."""
        return f"{super().extra_repr()}, connections={len(self.wiring.positions)} of {self.wiring.size}"


class SparseLinear(SparseModule, nn.Linear):  # type: ignore[misc]
    """A linear layer of active connections."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the product with the last dimension of the input."""
        return _uncompiled(self, x) if torch.compiler.is_compiling() else self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        """Return the product with the last dimension of the input."""
        flat = _in_float32(x)
        flat = flat if x.dim() == 2 else flat.reshape(-1, x.shape[-1])
        if x.shape[-1] != self.in_features:
            raise InputError(f"the input has {x.shape[-1]} features, the layer takes {self.in_features}")
        y = self.product(batch_innermost(flat)).t()
        return y if x.dim() == 2 else y.reshape(*x.shape[:-1], self.out_features)


class SparseConv2d(SparseModule, nn.Conv2d):
    """A convolution of active connections. Its output has the batch innermost in memory."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of images [batch, channels, height, width], or of one without a batch."""
        return _uncompiled(self, input) if torch.compiler.is_compiling() else self.compute(input)

    def compute(self, input: Tensor) -> Tensor:
        """Return the convolution."""
        images = input if input.dim() == 4 else input.unsqueeze(0)
        if images.dim() != 4 or images.shape[1] != self.in_channels:
            raise InputError(f"the input has shape {tuple(input.shape)}, expected [batch, {self.in_channels}, …, …]")
        if min(self.wiring.layer.output((images.shape[2], images.shape[3]))) < 1:
            raise InputError(f"images of {images.shape[2]} × {images.shape[3]} are smaller than the kernel")
        batch, channels, height, width = images.shape
        x = batch_innermost(_in_float32(images).reshape(batch, -1)).view(channels, height, width, batch)
        y = self.product(x).permute(3, 0, 1, 2)
        return y if input.dim() == 4 else y.squeeze(0)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _uncompiled(layer: "SparseLinear | SparseConv2d", x: Tensor) -> Tensor:
    """Leave a compiled graph for the kernels."""
    return layer.compute(x)


class _Product(torch.autograd.Function):
    """The product of a layer on tensors with the batch innermost."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, bias: Tensor | None, module: SparseModule) -> Tensor:
        ctx.module, ctx.version = module, module.wiring.version
        ctx.save_for_backward(x, values)
        return module.wiring.kernel.forward(x, values, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, values = ctx.saved_tensors
        module: SparseModule = ctx.module
        if ctx.version != module.wiring.version:
            raise InputError("the topology changed between the forward and the backward pass: run both again")
        needs_input, needs_values, needs_bias, _ = ctx.needs_input_grad
        dy = contiguous_rows(dy) if dy.dim() == 4 else dy.contiguous()
        kernel = module.wiring.kernel
        dx, dvalues = kernel.backward(x, values, dy, needs_input=needs_input, needs_values=needs_values)
        if needs_values and module.recording:
            module.record(x, dy)
        return dx, dvalues, dy.sum(tuple(range(1, dy.dim()))) if needs_bias else None, None


def product_of(x: Tensor, values: Tensor, bias: Tensor | None, owner: Any) -> Tensor:
    """Return the product of [channels, height, width, batch] with the values of an owner's wiring."""
    return _Product.apply(x, values, bias, owner)  # type: ignore[no-any-return, no-untyped-call]


class _Transposed(torch.autograd.Function):
    """[batch, features] → [features, batch], contiguous, by a faster copy than torch's."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:  # noqa: ARG004
        return transposed(rows.contiguous())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.t()


def batch_innermost(rows: Tensor) -> Tensor:
    """Return [batch, features] as contiguous [features, batch]: as it is where it has this layout already."""
    if rows.t().is_contiguous():
        return rows.t()
    if not rows.requires_grad:
        return transposed(rows.contiguous())
    return _Transposed.apply(rows)  # type: ignore[no-any-return, no-untyped-call]


def _in_float32(x: Tensor) -> Tensor:
    """Return an input under autocast in float32, in which sparse layers compute."""
    return x.float() if torch.is_autocast_enabled("cpu") else x


# Making layers sparse and dense again


def layer_shape(module: nn.Module) -> LayerShape:
    """Return the shape of a layer that has kernels; raise for any other."""
    if isinstance(module, nn.Linear):
        return LayerShape(module.in_features, module.out_features, linear=True)
    if isinstance(module, nn.Conv2d) and not isinstance(module.padding, str):
        windows = (module.kernel_size, module.stride, module.padding, module.dilation)
        kernel, stride, padding, dilation = ((each[0], each[1]) for each in windows)
        return LayerShape(module.in_channels, module.out_channels, module.groups, kernel, stride, padding, dilation)
    raise InputError(f"a {type(module).__name__} has no sparse kernel")


_SPARSE: dict[type[nn.Module], type[SparseModule]] = {nn.Linear: SparseLinear, nn.Conv2d: SparseConv2d}
_DENSE = {sparse: dense for dense, sparse in _SPARSE.items()}


@torch.no_grad()
def make_sparse(module: nn.Module, positions: Tensor) -> SparseModule:
    """Turn a layer into a sparse one, in place. A weight without memory gets its initial values here."""
    weight: nn.Parameter = module.weight  # type: ignore[assignment]
    wiring = Wiring(weight.shape, layer_shape(module), positions)
    if weight.is_meta:
        _allocate(module, len(positions))
    else:
        _set_data(weight, wiring.gather(weight.data))
    module.__class__ = _SPARSE[type(module)]
    assert isinstance(module, SparseModule)
    module.wiring, module.loaded, module.recording, module.recorded = wiring, None, False, []
    return module


def _set_data(weight: Tensor, data: Tensor) -> None:
    """Replace the data of a parameter, in another shape. Graphs of earlier passes no longer reach it."""
    weight.grad = None
    weight.data = data.new_empty(0, dtype=torch.float64)  # a change of type drops the node that collects gradients
    weight.data = data


def _allocate(module: nn.Module, connections: int) -> None:
    """Draw the values of a layer on the meta device as `nn.Linear` and `nn.Conv2d` draw weights and biases."""
    weight: nn.Parameter = module.weight  # type: ignore[assignment]
    bound = 1 / sqrt(prod(weight.shape[1:]))
    module.weight = nn.Parameter(torch.empty(connections).uniform_(-bound, bound), weight.requires_grad)
    if isinstance(module.bias, nn.Parameter):
        module.bias = nn.Parameter(torch.empty(module.bias.shape).uniform_(-bound, bound), module.bias.requires_grad)


@torch.no_grad()
def make_dense(module: SparseModule) -> None:
    """Turn a sparse layer into the plain one that it was, in place."""
    _set_data(module.weight, module.wiring.dense(module.weight.data))
    del module.wiring, module.loaded, module.recording, module.recorded
    module.__class__ = _DENSE[type(module)]  # type: ignore[assignment]


def dense_shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of all parameters by name, of the dense weight where a layer is sparse."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sparse = {f"{path}.weight".removeprefix("."): each for path, each in model.named_modules()}
    return shapes | {name: each.wiring.shape for name, each in sparse.items() if isinstance(each, SparseModule)}
