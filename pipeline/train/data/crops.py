"""Where to cut photographs, as boxes (left, top, right, bottom) in pixels: pure functions of sizes and randomness."""

from math import exp, log
from random import Random
from typing import NamedTuple

# The usual cuts of ImageNet training: a part of 8 to 100 % of the area, between upright and lying 3:4.
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
_TRIES = 10
# In evaluation the shorter side is made 256 pixels long, and the middle 224 × 224 are cut out.
CENTRE = 224 / 256


class Box(NamedTuple):
    """A part of an image."""

    left: float
    top: float
    right: float
    bottom: float


def random_box(size: tuple[int, int], draw: Random) -> Box:
    """A random part of an image of (width, height): its area and its aspect are drawn, then its place.

    >>> random_box((100, 100), Random(0))
    Box(left=0, top=0, right=100, bottom=86)
    """
    width, height = size
    for _ in range(_TRIES):
        area = width * height * draw.uniform(*AREA)
        aspect = exp(draw.uniform(log(ASPECT[0]), log(ASPECT[1])))
        w, h = round((area * aspect) ** 0.5), round((area / aspect) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = draw.randint(0, width - w), draw.randint(0, height - h)
            return Box(left, top, left + w, top + h)
    return _middle(size)


def _middle(size: tuple[int, int]) -> Box:
    """The largest part in the middle whose aspect is allowed: for images that are too long for a random one."""
    width, height = size
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return Box(left, top, left + w, top + h)


def centre_box(size: tuple[int, int], share: float = CENTRE) -> Box:
    """The square in the middle, as long as a share of the shorter side: resize and centre crop in one.

    >>> centre_box((256, 320))
    Box(left=16.0, top=48.0, right=240.0, bottom=272.0)
    """
    width, height = size
    side = share * min(size)
    left, top = (width - side) / 2, (height - side) / 2
    return Box(left, top, left + side, top + side)
