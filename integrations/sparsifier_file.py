"""The state of a sparsifier as a file of its own, for frameworks whose checkpoints are folders."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError

KIND = "sparsifier"


@dataclass(frozen=True)
class _Counters:
    steps: int
    updates: int
    changed: int


@dataclass(frozen=True)
class _Header:
    """The header beside the tensors."""

    counters: _Counters
    updated_at: int | None
    pending: int | None


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what `Sparsifier.state_dict` returned, atomically."""
    masks = {f"mask/{name}": mask for name, mask in state["masks"].items()}
    memory = {f"memory/{name}/{key}": value for name, each in state["memory"].items() for key, value in each.items()}
    header = {key: state[key] for key in ("counters", "updated_at", "pending")}
    save_artifact(path, KIND, masks | memory, header)


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote."""
    tensors, content = load_artifact(path, KIND)
    masks = _below(tensors, "mask/")
    if not masks or any(mask.dtype != torch.bool for mask in masks.values()):
        raise InputError(f"{path} has no masks, or not of booleans: it is damaged, restore it")
    try:
        header = asdict(parse(_Header, content))
    except InputError as error:
        raise InputError(f"{path}: {error}; it is damaged, restore it") from None
    return {**header, "masks": masks, "memory": {name: _below(tensors, f"memory/{name}/") for name in masks}}


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
