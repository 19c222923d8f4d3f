"""Decode an image file to bytes [3, side, side], and check quickly whether a file is complete."""

import os
from pathlib import Path
from random import Random
from struct import error as StructError
from typing import TYPE_CHECKING, BinaryIO
from zlib import error as ZlibError

import numpy as np
import torch
from torch import Tensor

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.data.crops import Box
from rigl_compress.data.image_views import View

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM", "TIFF")  # whatever the file name: EPS would start a program
# The largest number of pixels that is decoded, 200 MB: a PNG of kilobytes can decode to gigabytes.
MOST_PIXELS = 2**26
_USUAL = View()
_TAIL = 64  # bytes in which the end marker of a file is searched
# Start and end markers of complete files of these formats.
_MARKS = ((b"\xff\xd8\xff", b"\xff\xd9"), (b"\x89PNG\r\n\x1a\n", b"IEND"))


class DamagedImageError(Exception):
    """A file cannot be decoded; the message is the reason."""


def check_pillow() -> None:
    """Raise if Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError:
        raise InputError("image folders need Pillow: install it with `pip install rigl-compress[images]`") from None


def decode(source: Path | str | BinaryIO, side: int, seed: int | None, view: View = _USUAL) -> Tensor:
    """Return a square of the image, uint8 [3, side, side]: what training sees of it, or without a seed the centre."""
    from PIL import Image

    draw = None if seed is None else Random(seed)
    try:
        with Image.open(source, formats=FORMATS) as image:
            part = part_of(image, view.box(image.size, draw), side)
            mirrored = view.is_mirrored(draw)
            pixels = np.asarray(view.coloured(part, draw))
    except (OSError, EOFError, SyntaxError, ValueError, StructError, ZlibError, Image.DecompressionBombError) as error:
        raise DamagedImageError(_reason(error)) from error
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
    return first_line(error).partition(": '")[0].partition(" <_io")[0]


def damage(path: Path) -> str:
    """Return why a file cannot be decoded, or an empty string; cheap, unless the end marker is missing."""
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
    try:  # other formats, and files with trailing data
        decode(path, side=8, seed=None)
    except DamagedImageError as error:
        return str(error)
    return ""
