"""What a network sees of an image: which part of it, mirrored or not, in which colours; pure functions of a seed."""

from dataclasses import dataclass
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from rigl_compress.core.errors import InputError
from rigl_compress.data.crops import AREA, ASPECT, CENTRE, Box, centre_box, random_box

if TYPE_CHECKING:
    from PIL.Image import Image

_COLOURS = {"brightness": "Brightness", "contrast": "Contrast", "saturation": "Color"}  # of PIL.ImageEnhance


@dataclass(frozen=True)
class View:
    """The part of an image, and its changes at random in training; the defaults are the usual ones of ImageNet.

    In testing, and in training with `crop` = "center", it is the central square, `center` of the shorter side long.
    """

    crop: Literal["random", "center"] = "random"
    scale: tuple[float, float] = AREA
    ratio: tuple[float, float] = ASPECT
    center: float = CENTRE
    flip: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        low, high = self.scale
        _expect("scale", self.scale, 0 < low <= high <= 1, "two shares of the area from above 0 to 1, smaller first")
        low, high = self.ratio
        _expect("ratio", self.ratio, 0 < low <= high < inf, "two ratios of width to height above 0, smaller first")
        _expect("center", self.center, 0 < self.center <= 1, "a share of the shorter side from above 0 to 1")
        _expect("flip", self.flip, 0 <= self.flip <= 1, "a probability from 0 to 1")
        for name in _COLOURS:
            value = getattr(self, name)
            _expect(name, value, 0 <= value < inf, "0 (unchanged), or the largest change, e.g. 0.4 for 60 to 140 %")

    def box(self, size: tuple[int, int], draw: Random | None) -> Box:
        """Return the part of an image of (width, height); without a generator that of testing."""
        if draw is None or self.crop == "center":
            return centre_box(size, self.center)
        return random_box(size, draw, self.scale, self.ratio)

    def is_mirrored(self, draw: Random | None) -> bool:
        """Draw whether an image is mirrored."""
        return draw is not None and draw.random() < self.flip

    def coloured(self, image: "Image", draw: Random | None) -> "Image":
        """Change brightness, contrast and saturation by random factors, in this order."""
        from PIL import ImageEnhance

        for option, enhancer in _COLOURS.items():
            if draw is not None and (most := getattr(self, option)):
                factor = draw.uniform(max(0.0, 1 - most), 1 + most)
                image = getattr(ImageEnhance, enhancer)(image).enhance(factor)
        return image


def _expect(option: str, value: Any, holds: bool, expected: str) -> None:
    if not holds:
        found = list(value) if isinstance(value, tuple) else value
        raise InputError(f"data.options.{option} is {found}, expected {expected}")
