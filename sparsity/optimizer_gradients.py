"""The gradients of everything that an optimizer trains, and the optimizer inside of a framework's own."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError

# What accelerate and Lightning put around an optimizer: `step` calls that of the optimizer inside.
_WRAPPERS = ("AcceleratedOptimizer", "LightningOptimizer")


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer that takes the steps, without the wrapper of a framework.

    >>> innermost(torch.optim.SGD([torch.zeros(1)], lr=0.1)).__class__.__name__
    'SGD'
    """
    if any(kind.__name__ in _WRAPPERS for kind in type(optimizer).__mro__):
        return innermost(optimizer.optimizer)  # type: ignore[attr-defined]
    if not isinstance(optimizer, Optimizer):
        raise InputError(f"the optimizer is a {type(optimizer).__name__}, expected a torch.optim.Optimizer")
    return optimizer


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether anything that an optimizer trains has a gradient."""
    return any(parameter.grad is not None for parameter in _parameters(optimizer))


def drop_gradients(optimizer: Optimizer) -> None:
    """Set all gradients to None: with them the optimizers of torch leave weights and state as they are."""
    for parameter in _parameters(optimizer):
        parameter.grad = None


@torch.no_grad()
def unscale_gradients(optimizer: Optimizer) -> None:
    """Divide the gradients by the scale that a gradient scaler left to a fused optimizer, which then does not."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for parameter in _parameters(optimizer):
        if parameter.grad is not None:
            parameter.grad.div_(scale.to(parameter.grad.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
