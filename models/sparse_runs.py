"""Runs of linear layers and ReLU in `nn.Sequential`, computed as one node of autograd where sparse layers are in them.

A small sparse layer takes less time than torch needs to call it. Within a run, activations stay in the layout of the
kernels. What hooks, tracing or other code would see of the modules is kept: a module with hooks ends a run.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from rigl_compress.core.errors import InputError
from rigl_compress.models.run_kernels import FullKernel, Gradients, RunKernel, Stage
from rigl_compress.models.sparse_modules import SparseLinear, SparseModule, batch_innermost

# Larger dense layers are faster as products of torch than on sparse kernels with all connections.
SMALL = 1 << 14
Layers = list[tuple[nn.Linear, bool]]  # linear layers, and whether ReLU follows


class SparseSequential(nn.Sequential):
    """A sequence of modules that computes runs of sparse layers at once while gradients are computed."""

    _planned: "tuple[list[Any], list[Callable[[Any], Any]]] | None" = None

    def forward(self, input: Any) -> Any:
        """Return the output of the last module."""
        x = input
        for part in self._parts() if _is_plain(x) else self._modules.values():
            x = part(x)
        return x

    def _parts(self) -> "list[Callable[[Any], Any]]":
        """Return runs and modules in their order; planned again when a module has changed."""
        state = [each for module in self._modules.values() for each in (module, type(module), _is_watched(module))]
        if self._planned is None or self._planned[0] != state:
            self.__dict__["_planned"] = (state, _planned([*self._modules.values()]))
        assert self._planned is not None
        return self._planned[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_planned": None}


def _is_plain(x: Any) -> bool:
    """Whether runs are computed at once: not without gradients, for compilers, tracers, global hooks, autocast."""
    if type(x) is not Tensor or not torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    watched = torch.compiler.is_compiling() or torch._C._is_tracing() or _has_any_global_hook()  # type: ignore[no-untyped-call]
    return not watched


def _is_watched(module: nn.Module) -> bool:
    """Whether a module has hooks, or another function as its forward pass."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in module.__dict__


def _planned(modules: Sequence[nn.Module]) -> "list[Callable[[Any], Any]]":
    parts: list[Callable[[Any], Any]] = []
    at = 0
    while at < len(modules):
        layers, end = _layers_from(modules, at)
        joined = end - at > 1 and any(type(layer) is SparseLinear for layer, _ in layers)
        parts.append(Run(layers, modules[at:end]) if joined else modules[at])
        at = end if joined else at + 1
    return parts


def _layers_from(modules: Sequence[nn.Module], start: int) -> tuple[Layers, int]:
    """Return the linear layers that follow each other from here on, and where they end."""
    found: Layers = []
    at = start
    while at < len(modules) and _is_linear(modules[at]):
        layer: nn.Linear = modules[at]  # type: ignore[assignment]
        if found and found[-1][0].out_features != layer.in_features:
            break
        has_relu = at + 1 < len(modules) and type(modules[at + 1]) is nn.ReLU and not _is_watched(modules[at + 1])
        found.append((layer, has_relu))
        at += 2 if has_relu else 1
    return found, at


def _is_linear(module: nn.Module) -> bool:
    if _is_watched(module):
        return False
    small = type(module) is nn.Linear and module.in_features * module.out_features <= SMALL
    return small or type(module) is SparseLinear


class Run:
    """Linear layers of a sequence, with ReLU between them. Where an input or weight does not fit, the modules run."""

    def __init__(self, layers: Layers, modules: Sequence[nn.Module]) -> None:
        self.layers, self._modules = layers, modules
        self._full = {
            layer: FullKernel(layer.in_features, layer.out_features)
            for layer, _ in layers
            if not isinstance(layer, SparseModule)
        }
        self._kernel: RunKernel | None = None
        self._versions: list[int] = []

    def __call__(self, x: Any) -> Any:
        """Return the output of the last layer."""
        parameters = [each for layer, _ in self.layers for each in (layer.weight, layer.bias)]
        if not self._takes(x) or not all(each is None or _is_float(each) for each in parameters):
            for module in self._modules:
                x = module(x)
            return x
        flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        y = _Product.apply(self, batch_innermost(flat), *parameters).t()  # type: ignore[no-untyped-call]
        return y if x.dim() == 2 else y.reshape(*x.shape[:-1], y.shape[1])

    def _takes(self, x: Any) -> bool:
        first = self.layers[0][0]
        return type(x) is Tensor and x.dim() > 0 and x.shape[-1] == first.in_features and _is_real(x)

    @property
    def versions(self) -> list[int]:
        """How often the topology of each layer has changed."""
        return [layer.wiring.version if isinstance(layer, SparseModule) else 0 for layer, _ in self.layers]

    @property
    def kernel(self) -> RunKernel:
        """The kernels of the present topology."""
        versions = self.versions
        if self._kernel is None or self._versions != versions:
            self._kernel, self._versions = RunKernel([self._stage(*each) for each in self.layers]), versions
        return self._kernel

    def _stage(self, layer: nn.Linear, has_relu: bool) -> Stage:
        return Stage(layer.wiring.kernel if isinstance(layer, SparseModule) else self._full[layer], has_relu)

    @property
    def is_recording(self) -> bool:
        """Whether an update is due, for which a layer records its backward pass."""
        return any(isinstance(layer, SparseModule) and layer.recording for layer, _ in self.layers)

    def record(self, x: Tensor, inner: Tensor, dy: Tensor, found: Gradients) -> None:
        """Keep what growth needs of a backward pass."""
        rows, last = self.kernel.rows, len(self.layers) - 1
        for index, (layer, has_relu) in enumerate(self.layers):
            if isinstance(layer, SparseModule) and layer.recording and found.parameters[2 * index] is not None:
                source = x if index == 0 else inner[rows[index - 1] : rows[index]]
                own = has_relu or index < last
                layer.record(source, found.outputs[rows[index] : rows[index + 1]] if own else dy)


def _is_float(parameter: Tensor) -> bool:
    return _is_real(parameter) and parameter.is_contiguous()


def _is_real(tensor: Tensor) -> bool:
    return tensor.dtype is torch.float32 and tensor.is_cpu


class _Product(torch.autograd.Function):
    """The product of a run, on tensors with the batch innermost."""

    @staticmethod
    def forward(ctx: Any, run: Run, x: Tensor, *parameters: Tensor | None) -> Tensor:
        kernel = run.kernel
        ctx.run, ctx.kernel = run, kernel
        inner, y = kernel.forward(x, parameters)
        # As torch, keep the last output for ReLU alone: other code may write to it otherwise.
        ctx.save_for_backward(x, inner, y if run.layers[-1][1] else None, *parameters)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # for gradients of gradients, which there are none of
            return _backward_once(ctx, dy)
        return _backward(ctx, dy)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, inner, y, *parameters = ctx.saved_tensors
    run: Run = ctx.run
    if ctx.kernel is not run.kernel:
        raise InputError("the topology changed between the forward and the backward pass: run both again")
    dy = dy.contiguous()
    found = ctx.kernel.backward(parameters, (x, inner, y), dy, ctx.needs_input_grad[1:])
    if run.is_recording:
        run.record(x, inner, dy, found)
    return None, found.x, *found.parameters


_backward_once = torch.autograd.function.once_differentiable(_backward)


# Making sequences compute runs, and plain again


def join_runs(model: nn.Module) -> list[nn.Module]:
    """Let the sequences of a model that have sparse layers compute runs of them at once, in place; return these."""
    found = [module for module in model.modules() if type(module) is nn.Sequential and _has_sparse(module)]
    for module in found:
        module.__class__ = SparseSequential
    return list(found)


def split_runs(modules: Iterable[nn.Module]) -> None:
    """Make sequences plain ones again, in place."""
    for module in modules:
        if type(module) is SparseSequential:
            module.__dict__.pop("_planned", None)
            module.__class__ = nn.Sequential  # type: ignore[assignment]


def _has_sparse(sequence: nn.Module) -> bool:
    return any(isinstance(child, SparseLinear) for child in sequence.children())
