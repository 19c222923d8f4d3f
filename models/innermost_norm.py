"""Batch normalization of activations with the batch innermost in memory, fused with a ReLU in the backward pass."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rigl_compress.models.innermost_layout import (
    InnermostModule,
    channels_first,
    contiguous_rows,
    is_innermost,
    rows_of,
)
from rigl_compress.models.norm_kernels import NormInput, norm_backward, norm_forward, rectified

_RELU = (torch.relu, Tensor.relu, F.relu)


class InnermostBatchNorm2d(InnermostModule, nn.BatchNorm2d):
    """A batch normalization that keeps the layout of its input."""

    plain_type = nn.BatchNorm2d

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised images."""
        if torch.compiler.is_compiling() or not is_innermost(input):
            return super().forward(input)
        if input.dtype != torch.float32 or not (self.training or self.running_mean is None):
            rows = rows_of(input)  # one image of the same channels: the same statistics
            return channels_first(super().forward(rows.flatten(1, 2).unsqueeze(0)).view(rows.shape))
        return self._normalised(input)

    def _normalised(self, x: Tensor) -> Tensor:
        count = x.numel() // max(1, x.shape[1])
        if count < 2:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
        mean, variance = torch.empty(x.shape[1]), torch.empty(x.shape[1])
        rows: Tensor = _Norm.apply(x, self.weight, self.bias, (mean, variance, self.eps))  # type: ignore[no-untyped-call]
        y = channels_first(rows)
        self._track(mean, variance * (count / (count - 1)))
        if not y.requires_grad:
            return y
        return Normalised.of(y, (x, self.weight, self.bias, (mean, variance, self.eps)))

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def _gradients(ctx: Any, dy: Tensor, clipped: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    x, weight, bias, mean, variance = ctx.saved_tensors
    given = NormInput(rows_of(x), weight, bias, mean, variance, ctx.epsilon)
    dx, dweight, dbias = norm_backward(given, dy, clipped=clipped)
    return channels_first(dx), None if weight is None else dweight, None if bias is None else dbias


class _Norm(torch.autograd.Function):
    """The normalization of images with the batch innermost, as [channels, height, width, batch]."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, rest: tuple[Tensor, Tensor, float]
    ) -> Tensor:
        ctx.save_for_backward(x, weight, bias, *rest[:2])
        ctx.epsilon = rest[2]
        return norm_forward(NormInput(rows_of(x), weight, bias, *rest))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(ctx, contiguous_rows(dy), clipped=False), None


class _NormRelu(torch.autograd.Function):
    """The ReLU of an output of `_Norm`, with the gradient of both at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, rest: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, bias, *rest[:2])
        ctx.epsilon = rest[2]
        return rectified(y)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return *_gradients(ctx, rows_of(dy), clipped=True), None, None


class Normalised(Tensor):
    """An output of a batch normalization that knows its inputs: a ReLU of it needs no gradient of its own."""

    origin: tuple[Any, ...]
    made: int  # the version of the tensor: if it was changed in place since, it is like any other

    @staticmethod
    def of(y: Tensor, origin: tuple[Any, ...]) -> "Normalised":
        """Return a tensor with its inputs."""
        found = y.as_subclass(Normalised)
        with torch._C.DisableTorchFunctionSubclass():
            found.origin, found.made = origin, found._version
        return found

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compute a ReLU with the gradient of both, and everything else as of a plain tensor."""
        del types
        with torch._C.DisableTorchFunctionSubclass():
            options = dict(kwargs or {})
            product = _relu_of(func, args, options)
            return func(*args, **options) if product is None else product


def _relu_of(func: Callable[..., Any], args: Sequence[Any], options: Mapping[str, Any]) -> Tensor | None:
    if func not in _RELU or options.get("inplace") or len(args) != 1 or not isinstance(args[0], Normalised):
        return None
    y = args[0]
    if y._version != y.made or not torch.is_grad_enabled():
        return None
    return _NormRelu.apply(*y.origin, y.detach())  # type: ignore[no-any-return, no-untyped-call]
