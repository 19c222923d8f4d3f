"""Crop boxes (left, top, right, bottom) in pixels: pure functions of sizes and a random generator."""

from math import exp, log
from random import Random
from typing import NamedTuple

# The usual random crop of ImageNet training: 8 to 100 % of the area, aspect between 3:4 and 4:3.
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
_TRIES = 10
# In evaluation: resize the shorter side to 256 pixels, and crop the central 224 × 224.
CENTRE = 224 / 256


class Box(NamedTuple):
    """A part of an image."""

    left: float
    top: float
    right: float
    bottom: float


Range = tuple[float, float]


def random_box(size: tuple[int, int], draw: Random, area: Range = AREA, aspect: Range = ASPECT) -> Box:
    """Return a random crop of an image of (width, height): its area and aspect are drawn, then its position.

    >>> random_box((100, 100), Random(0))
    Box(left=0, top=0, right=100, bottom=86)
    """
    width, height = size
    for _ in range(_TRIES):
        pixels = width * height * draw.uniform(*area)
        drawn = exp(draw.uniform(log(aspect[0]), log(aspect[1])))
        w, h = round((pixels * drawn) ** 0.5), round((pixels / drawn) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            return Box(left, top, left + w, top + h)
    return _middle(size, aspect)


def _middle(size: tuple[int, int], aspect: Range) -> Box:
    """Return the largest central crop with an allowed aspect: for images that are too long for a random one."""
    width, height = size
    w, h = min(width, max(1, round(height * aspect[1]))), min(height, max(1, round(width / aspect[0])))
    left, top = (width - w) // 2, (height - h) // 2
    return Box(left, top, left + w, top + h)


def centre_box(size: tuple[int, int], share: float = CENTRE) -> Box:
    """Return the central square, a share of the shorter side: resize and centre crop in one.

    >>> centre_box((256, 320))
    Box(left=16.0, top=48.0, right=240.0, bottom=272.0)
    """
    width, height = size
    side = share * min(size)
    left, top = (width - side) / 2, (height - side) / 2
    return Box(left, top, left + side, top + side)
