"""Networks of transformers with one tensor as input and one as output, under their own names of weights."""

from collections.abc import Callable
from functools import cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn


def returns_tensor(model: nn.Module, output: str, inputs: Callable[[Any, Tensor], dict[str, Tensor]]) -> nn.Module:
    """Let a network take one tensor and return one: `output` is the name of the field among its outputs.

    The network stays what it is, with all its names, of a class of its own that has another `forward`.
    """
    base: Any = type(model)
    model.__class__ = _with_forward(base, output, inputs)
    return model


@cache
def _with_forward(base: Any, output: str, inputs: Callable[[Any, Tensor], dict[str, Tensor]]) -> type:
    def forward(self: Any, x: Tensor) -> Tensor:
        found: Tensor = getattr(base.forward(self, **inputs(self, x), return_dict=True), output)
        return found

    return type(base.__name__, (base,), {"forward": forward, "__module__": base.__module__, "wrapped": base})


def images(network: Any, x: Tensor) -> dict[str, Tensor]:
    """Return the inputs of a network of images."""
    del network
    return {"pixel_values": x}


def tokens(network: Any, x: Tensor) -> dict[str, Tensor]:
    """Return the inputs of a network of tokens: x is [N, length], and padding is masked.

    Or x is [N, 2 or 3, length]: tokens, 1 where they are not masked, and the segment that they belong to.
    """
    named = ("input_ids", "attention_mask", "token_type_ids")
    if x.dim() == 3:
        parts = dict(zip(named, x.unbind(1), strict=False))
        return {name: each for name, each in parts.items() if name in accepted(network.wrapped)}
    padding = network.config.pad_token_id
    mask = torch.ones_like(x) if padding is None else (x != padding).to(x.dtype)
    return {"input_ids": x, "attention_mask": mask}


@cache
def accepted(network: type) -> tuple[str, ...]:
    """Return the names of the parameters of a network's `forward`."""
    return tuple(signature(network.forward).parameters)  # type: ignore[attr-defined]
