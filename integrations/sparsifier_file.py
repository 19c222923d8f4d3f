"""The state of a sparsifier as a separate file, for frameworks whose checkpoints are folders."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.sparsifier_state import StateHeader, masks_and_memory, state_header, state_tensors

KIND = "sparsifier"


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what `Sparsifier.state_dict` returned, atomically."""
    save_artifact(path, KIND, state_tensors(state), state_header(state))


def load_state(path: Path) -> dict[str, Any]:
    """Read what `save_state` wrote."""
    tensors, content = load_artifact(path, KIND)
    try:
        found = masks_and_memory(tensors)
        if not found["masks"]:
            raise InputError("there are no masks")
        return {**asdict(parse(StateHeader, content)), **found}
    except InputError as error:
        raise InputError(f"{path}: {error}; it is damaged, restore it") from None
