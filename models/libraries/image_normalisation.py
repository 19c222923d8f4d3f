"""How the images were normalised that a library's network was trained on: kept with the network."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

Normalisation = Mapping[str, Sequence[float]]  # mean and std of pixels / 255; empty: nobody knows
_NONE: Normalisation = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def keep_normalisation(model: nn.Module, found: Mapping[str, Any]) -> None:
    """Keep mean and std with a network, if they are numbers."""
    mean, std = (found.get(key) for key in ("mean", "std"))
    known = all(isinstance(each, list | tuple) and {*map(type, each)} <= {int, float} for each in (mean, std))
    model.image_normalisation = {"mean": mean, "std": std} if known else {}  # type: ignore[assignment]


def normalisation_of(model: nn.Module) -> Normalisation | None:
    """Return what was kept; None if a network has no weights of a library."""
    found: Normalisation | None = getattr(model, "image_normalisation", None)
    return found


def of_processor(file: Path) -> Normalisation:
    """Return the normalisation of a preprocessor_config.json; empty if it is missing or damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not content.get("do_normalize", True):
            return _NONE
        return {"mean": content["image_mean"], "std": content["image_std"]}
    except (OSError, ValueError, KeyError, AttributeError, RecursionError):
        return {}
