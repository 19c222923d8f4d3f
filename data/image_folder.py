"""Folders of images in the layout of ImageNet, train/CLASS/… and val/CLASS/…."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Unpack

import torch

from rigl_compress.core.errors import InputError
from rigl_compress.data.data_files import DataFile
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.download_sources import Log
from rigl_compress.data.image_decoding import SUFFIXES, check_pillow, damage
from rigl_compress.data.image_files import ImageFiles, Reading, unreadable
from rigl_compress.data.image_options import FolderOptions, image_shape, reading

_TESTS = ("val", "validation", "valid", "test")  # the first of these that is there is tested on


def read_folder(folder: Path, log: Log, **options: Unpack[FolderOptions]) -> tuple[ImageFiles, ImageFiles]:
    """Return training and validation images. `check` tests every file before the first step."""
    check_pillow()
    chosen, check = reading(options), options.get("check", True)
    names, tested = class_names(folder / "train"), _tested(folder)
    if tested.name != _TESTS[0]:
        log(f"there is no {folder / _TESTS[0]}: {tested} is tested on")
    train, test = (_image_files(part, names, chosen, log, check) for part in (folder / "train", tested))
    return train, test


def _tested(folder: Path) -> Path:
    return next((found for part in _TESTS if (found := folder / part).is_dir()), folder / _TESTS[0])


def class_names(folder: Path) -> list[str]:
    """Return the classes of a split: its sub-folders, sorted by name."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: expected train/CLASS/… and val/CLASS/… with images in them")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise InputError(f"{folder} has no sub-folders: expected one for each class, with its images")
    return names


def _image_files(folder: Path, names: list[str], how: Reading, log: Log, check: bool) -> ImageFiles:
    unknown = set(class_names(folder)) - set(names)
    if unknown:
        raise InputError(f"{folder / min(unknown)} is not a class of train: add the folder there too, or remove it")
    found = [_images(folder / name) for name in names if (folder / name).is_dir()]
    labels = [label for label, name in enumerate(names) if (folder / name).is_dir()]
    pairs = [(path, label) for path, label in dealt(found, labels) if not check or _sound(path, how, log)]
    if not pairs:
        raise InputError(f"{folder} has no image that can be read: expected {', '.join(SUFFIXES)} files")
    paths, classes = zip(*pairs, strict=True)
    return ImageFiles([str(path) for path in paths], torch.tensor(classes, dtype=torch.int64), how, log)


def _images(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not found:
        raise InputError(f"{folder} has no images: add {', '.join(SUFFIXES)} files, or remove the folder")
    return found


def dealt(groups: Sequence[Sequence[Path]], labels: Sequence[int]) -> Iterator[tuple[Path, int]]:
    """Interleave the classes, so that every part is balanced: `hold_out` takes the end.

    >>> [str(path) for path, _ in dealt([[Path("a1"), Path("a2")], [Path("b1")]], [0, 1])]
    ['a1', 'b1', 'a2']
    """
    for row in zip_longest(*groups):
        yield from ((path, label) for path, label in zip(row, labels, strict=True) if path is not None)


def _sound(path: Path, how: Reading, log: Log) -> bool:
    reason = damage(path)
    if reason and how.damaged == "fatal":
        raise unreadable(path, reason)
    if reason:
        log(f"{path} is left out: {reason}")
    return not reason


def read_imagenet(folder: Path, log: Log, **options: Unpack[FolderOptions]) -> tuple[ImageFiles, ImageFiles]:
    """ImageNet-2012, which has a thousand classes."""
    found = len(class_names(folder / "train"))
    if found != IMAGENET.classes:
        raise InputError(
            f"{folder / 'train'} has {found} classes, imagenet has {IMAGENET.classes}: use the data set image-folder"
        )
    return read_folder(folder, log, **options)


_FOLDERS = (DataFile("train", 0, ""), DataFile(_TESTS[0], 0, "", others=_TESTS[1:]))
IMAGENET = DataSpec(
    name="imagenet",
    title="ImageNet-2012, 1.3 million photographs",
    classes=1000,
    input_shape=image_shape,
    counts=(1_281_167, 50_000),
    files=_FOLDERS,
    read=read_imagenet,
    hint="train/CLASS/*.JPEG and val/CLASS/*.JPEG; its licence does not let it be fetched for you",
)
IMAGE_FOLDER = DataSpec(
    name="image-folder",
    title="photographs in folders train/CLASS/… and val/CLASS/…",
    input_shape=image_shape,
    files=_FOLDERS,
    read=read_folder,
    hint="a folder for each class, with its images in it",
)
