"""Photographs of a folder as inputs of a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.data.image_decoding import SUFFIXES, DamagedImageError, check_pillow, decode
from rigl_compress.data.image_options import reading
from rigl_compress.exporters.random_inputs import ModelInput, Shape

if TYPE_CHECKING:
    from rigl_compress.onnx_pruning.calibration_samples import CalibrationConfig

Array = NDArray[Any]
CHANNELS = 3


def image_batch(
    folder: Path, inputs: Sequence[ModelInput], shapes: Mapping[str, Shape], config: "CalibrationConfig"
) -> dict[str, Array]:
    """Read some images of a folder and those below it, as one batch in the layout of the model's only input."""
    files = sorted(each for each in folder.rglob("*") if each.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"{folder} has no image, .npy or .npz file: add some")
    check_pillow()
    each = _image_input(inputs, folder)
    side, last = _layout(each, shapes.get(each.name, ()))
    chosen = Random(0).sample(files, min(config.samples, len(files)))
    pixels = torch.stack([_decoded(path, side) for path in chosen])
    found = pixels if each.dtype == np.uint8 else reading({"normalize": config.normalize}).normalise(pixels)
    array = found.permute(0, 2, 3, 1) if last else found
    return {each.name: np.ascontiguousarray(array.numpy().astype(each.dtype))}


def _image_input(inputs: Sequence[ModelInput], folder: Path) -> ModelInput:
    if len(inputs) != 1 or len(inputs[0].axes) != 4:
        names = ", ".join(f"{each.name} [{', '.join(map(str, each.axes))}]" for each in inputs)
        raise InputError(f"{folder} has images, the model takes {names}: save its inputs with numpy.savez instead")
    return inputs[0]


def _layout(each: ModelInput, shape: Shape) -> tuple[int, bool]:
    """Return the side of images, and whether channels come last."""
    axes = shape or each.axes
    last = axes[3] == CHANNELS and axes[1] != CHANNELS
    sides = axes[1:3] if last else axes[2:]
    if (axes[3] if last else axes[1]) != CHANNELS:
        raise InputError(f"input {each.name!r} is [{', '.join(map(str, axes))}], not of images with three channels")
    if not isinstance(sides[0], int) or sides[0] != sides[1]:
        raise InputError(
            f"input {each.name!r} is [{', '.join(map(str, axes))}], expected squares of a known side: "
            f"set it with --shape {each.name}=1,3,224,224, or save inputs with numpy.savez"
        )
    return sides[0], last


def _decoded(path: Path, side: int) -> torch.Tensor:
    try:
        return decode(path, side, None)
    except DamagedImageError as error:
        raise InputError(f"{path} cannot be decoded ({error}): remove it") from None
