"""The options of data sets of images, as a recipe has them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypedDict, cast

from rigl_compress.core.errors import InputError
from rigl_compress.data.image_batches import Normalise
from rigl_compress.data.image_files import NORMALISE, SIDE, Reading
from rigl_compress.data.image_views import View

NORMALISATIONS = {
    "imagenet": NORMALISE,
    "half": Normalise((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": Normalise((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


class ImageOptions(TypedDict, total=False):
    """How images are read, cut, changed and normalised; docs/howto/data.md has the defaults."""

    side: int
    workers: int
    damaged: Literal["fatal", "skip"]
    normalize: Literal["imagenet", "half", "none"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    crop: Literal["random", "center"]
    scale: tuple[float, float]
    ratio: tuple[float, float]
    center: float
    flip: float
    brightness: float
    contrast: float
    saturation: float


class FolderOptions(ImageOptions, total=False):
    """Those of images in folders."""

    check: bool


def reading(options: Mapping[str, Any]) -> Reading:
    """Return how images are read under these options.

    >>> reading({"normalize": "half", "side": 32, "flip": 0}).normalise
    Normalise(mean=(0.5, 0.5, 0.5), deviation=(0.5, 0.5, 0.5))
    """
    own = {key: options[key] for key in ("side", "workers", "damaged") if key in options}
    view = View(**{each.name: options[each.name] for each in fields(View) if each.name in options})
    return Reading(**own, normalise=_normalise(options), view=view)


def _normalise(options: Mapping[str, Any]) -> Normalise:
    own = [options[key] for key in ("mean", "std") if key in options]
    if not own:
        return NORMALISATIONS[options.get("normalize", "imagenet")]
    if len(own) == 1 or "normalize" in options:
        raise InputError("data.options has only some of mean and std, or normalize beside them: set both, or normalize")
    mean, deviation = cast(list[tuple[float, float, float]], own)
    if min(deviation) <= 0 or not all(0 <= each <= 1 for each in mean):
        raise InputError(
            f"data.options: mean is {list(mean)} and std {list(deviation)}, expected those of pixels / 255: "
            "three means from 0 to 1, and three deviations above 0"
        )
    return Normalise(mean, deviation)


def image_shape(side: int = SIDE, **_: object) -> tuple[int, ...]:
    """Return the shape of an image under options."""
    return (3, side, side)
