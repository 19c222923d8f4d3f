"""One photograph: from a file to bytes [3, side, side], and a quick look at whether it is whole."""

import os
from pathlib import Path
from random import Random
from struct import error as StructError
from typing import TYPE_CHECKING
from zlib import error as ZlibError

import numpy as np
import torch
from torch import Tensor

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.data.crops import Box, centre_box, random_box

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")  # whatever a file is called: for EPS a program is started
# What is decoded has at most so many pixels, 200 MB: a PNG of kilobytes can ask for gigabytes.
MOST_PIXELS = 2**26
_TAIL = 64  # bytes in which the mark of a file's end is looked for
# How whole files of these formats begin and end.
_MARKS = ((b"\xff\xd8\xff", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND"))


class DamagedImageError(Exception):
    """This file gives no image; the message is the reason."""


def check_pillow() -> None:
    """Insist on the decoder."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError(
            "photographs are read by Pillow: install it with `pip install rigl-compress[images]`"
        ) from None


def decode(path: Path | str, side: int, seed: int | None) -> Tensor:
    """A square of the image, uint8 [3, side, side]: a random part, mirrored or not, or without a seed the middle."""
    from PIL import Image

    draw = None if seed is None else Random(seed)
    try:
        with Image.open(path, formats=FORMATS) as image:
            box = centre_box(image.size) if draw is None else random_box(image.size, draw)
            pixels = np.asarray(part_of(image, box, side))
    except (OSError, EOFError, SyntaxError, ValueError, StructError, ZlibError, Image.DecompressionBombError) as error:
        raise DamagedImageError(_reason(error)) from error
    mirrored = draw is not None and draw.random() < 0.5
    whole = pixels[:, ::-1] if mirrored else pixels
    return torch.from_numpy(np.ascontiguousarray(whole.transpose(2, 0, 1)))


def part_of(image: "Image", box: Box, side: int) -> "Image":
    """Cut a box out and resize it, with antialiasing, as the published recipes for ImageNet do."""
    from PIL import Image

    width, height = image.size
    # A JPEG of many pixels is decoded at a half, a quarter or an eighth of its size, as long as it stays twice as fine
    # as what is made of it: the rest is left to the better filter.
    shrink = max(1.0, min(box.right - box.left, box.bottom - box.top) / (2 * side))
    image.draft("RGB", (int(width / shrink), int(height / shrink)))
    across, down = image.size[0] / width, image.size[1] / height
    if image.size[0] * image.size[1] > MOST_PIXELS:
        raise DamagedImageError(f"{image.size[0]:,} × {image.size[1]:,} pixels, at most {MOST_PIXELS:,} are decoded")
    scaled = (box.left * across, box.top * down, box.right * across, box.bottom * down)
    image.load()
    colours = image if image.mode == "RGB" else image.convert("RGB")
    return colours.resize((side, side), Image.Resampling.BILINEAR, box=scaled)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).splitlines()[0].partition(": '")[0].partition(" <_io")[0]


def damage(path: Path) -> str:
    """Say why a file gives no image, or nothing; cheap, unless the file's end is not as it should be."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
            size = file.seek(0, os.SEEK_END)
            file.seek(-min(_TAIL, size), os.SEEK_END)
            tail = file.read()
    except OSError as error:
        return error.strerror or str(error)
    if not size:
        return "the file is empty"
    if any(head.startswith(begin) and end in tail for begin, end in _MARKS):
        return ""
    try:  # other formats, and files with something behind their end
        decode(path, side=8, seed=None)
    except DamagedImageError as error:
        return str(error)
    return ""
