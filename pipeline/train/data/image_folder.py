"""Folders of photographs in the layout of ImageNet, train/CLASS/… and val/CLASS/…."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import torch

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.data.dataset import DataSpec
from rigl_compress.pipeline.train.data.files import DataFile
from rigl_compress.pipeline.train.data.image_files import SIDE, ImageFiles, Reading, unreadable
from rigl_compress.pipeline.train.data.images import SUFFIXES, check_pillow, damage
from rigl_compress.pipeline.train.data.sources import Say


def read_folder(
    folder: Path,
    say: Say,
    side: int = SIDE,
    workers: int = 0,
    damaged: Literal["fatal", "skip"] = "fatal",
    check: bool = True,
) -> tuple[ImageFiles, ImageFiles]:
    """Training and validation photographs. `check` looks at every file before the first step."""
    check_pillow()
    reading = Reading(side, workers, damaged)
    names = class_names(folder / "train")
    train, val = (_image_files(folder / part, names, reading, say, check) for part in ("train", "val"))
    return train, val


def class_names(folder: Path) -> list[str]:
    """The classes of a split: its sub-folders, in the order of their names."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: expected train/CLASS/… and val/CLASS/… with images in them")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise InputError(f"{folder} has no sub-folders: expected one for each class, with its images")
    return names


def _image_files(folder: Path, names: list[str], reading: Reading, say: Say, check: bool) -> ImageFiles:
    unknown = set(class_names(folder)) - set(names)
    if unknown:
        raise InputError(f"{folder / min(unknown)} is of no class in train: put such a folder there too, or remove it")
    found = [_images(folder / name) for name in names if (folder / name).is_dir()]
    labels = [label for label, name in enumerate(names) if (folder / name).is_dir()]
    pairs = [(path, label) for path, label in dealt(found, labels) if not check or _sound(path, reading, say)]
    if not pairs:
        raise InputError(f"{folder} has no image that can be read: expected {', '.join(SUFFIXES)} files")
    paths, classes = zip(*pairs, strict=True)
    return ImageFiles([str(path) for path in paths], torch.tensor(classes, dtype=torch.int64), reading, say)


def _images(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise InputError(f"{folder} has no images: add {', '.join(SUFFIXES)} files, or remove the folder")
    return found


def dealt(groups: Sequence[Sequence[Path]], labels: Sequence[int]) -> Iterator[tuple[Path, int]]:
    """Deal the classes out in turn, so that every stretch is balanced: `hold_out` takes the end.

    >>> [str(path) for path, _ in dealt([[Path("a1"), Path("a2")], [Path("b1")]], [0, 1])]
    ['a1', 'b1', 'a2']
    """
    for row in zip_longest(*groups):
        yield from ((path, label) for path, label in zip(row, labels, strict=True) if path is not None)


def _sound(path: Path, reading: Reading, say: Say) -> bool:
    reason = damage(path)
    if reason and reading.damaged == "fatal":
        raise unreadable(path, reason)
    if reason:
        say(f"{path} is left out: {reason}")
    return not reason


def read_imagenet(
    folder: Path,
    say: Say,
    side: int = SIDE,
    workers: int = 0,
    damaged: Literal["fatal", "skip"] = "fatal",
    check: bool = True,
) -> tuple[ImageFiles, ImageFiles]:
    """ImageNet-2012, which has a thousand classes."""
    found = len(class_names(folder / "train"))
    if found != IMAGENET.classes:
        raise InputError(
            f"{folder / 'train'} has {found} classes, imagenet has {IMAGENET.classes}: use the data set image-folder"
        )
    return read_folder(folder, say, side, workers, damaged, check)


def _shape(side: int = SIDE, **_: object) -> tuple[int, ...]:
    return (3, side, side)


_FOLDERS = (DataFile("train", 0, ""), DataFile("val", 0, ""))
IMAGENET = DataSpec(
    name="imagenet",
    title="ImageNet-2012, 1.3 million photographs",
    classes=1000,
    input_shape=_shape,
    counts=(1_281_167, 50_000),
    files=_FOLDERS,
    read=read_imagenet,
    hint="train/CLASS/*.JPEG and val/CLASS/*.JPEG; its licence does not let it be fetched for you",
)
IMAGE_FOLDER = DataSpec(
    name="image-folder",
    title="photographs in folders train/CLASS/… and val/CLASS/…",
    classes=0,
    input_shape=_shape,
    counts=(0, 0),
    files=_FOLDERS,
    read=read_folder,
    hint="a folder for each class, with its images in it",
)
