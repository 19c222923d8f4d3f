"""The state of a sparsifier as files store it: tensors by path, and a header of numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError


@dataclass(frozen=True)
class Counters:
    """The counters of a sparsifier."""

    steps: int
    updates: int
    changed: int


@dataclass(frozen=True)
class StateHeader:
    """What `Sparsifier.state_dict` returns beside tensors."""

    counters: Counters
    updated_at: int | None
    pending: int | None


def state_header(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of what `Sparsifier.state_dict` returned, as JSON values."""
    return {field.name: state[field.name] for field in fields(StateHeader)}


def state_tensors(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the masks and what the method remembers, by path.

    >>> state = {"masks": {"fc": torch.ones(1).bool()}, "memory": {"fc": {"momentum": torch.ones(1)}}}
    >>> list(state_tensors(state))
    ['mask/fc', 'memory/fc/momentum']
    """
    masks = {f"mask/{name}": mask for name, mask in state["masks"].items()}
    return masks | {
        f"memory/{name}/{key}": value for name, each in state["memory"].items() for key, value in each.items()
    }


def masks_and_memory(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return this part of a state from the tensors of a file, the opposite of `state_tensors`."""
    masks = tensors_below(tensors, "mask/")
    for name, mask in masks.items():
        if mask.dtype != torch.bool:
            raise InputError(f"the mask of {name!r} is {mask.dtype}, expected torch.bool")
    return {"masks": masks, "memory": {name: tensors_below(tensors, f"memory/{name}/") for name in masks}}


def tensors_below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose path has this prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
