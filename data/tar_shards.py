"""Photographs in tar shards, as WebDataset writes them: KEY.jpg beside KEY.cls, read where they lie in the archive."""

import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any, BinaryIO, Unpack

import torch

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.data.bounded_decompression import TooLargeError, in_words
from rigl_compress.data.bounded_tars import MOST_AT_ONCE
from rigl_compress.data.data_files import DataFile
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.download_sources import Log
from rigl_compress.data.image_decoding import SUFFIXES, DamagedImageError, check_pillow
from rigl_compress.data.image_files import ImageFiles, Reading
from rigl_compress.data.image_options import ImageOptions, image_shape, reading

MOST_ENTRIES = 2**22  # of a shard
MOST_BYTES = 2**28  # of an image in its file
_MOST_DIGITS = 32  # bytes of a .cls file
_BLOCK = 512  # bytes of a tar header


def read_shards(folder: Path, log: Log, **options: Unpack[ImageOptions]) -> tuple[ImageFiles, ImageFiles]:
    """Return the images of train/*.tar and val/*.tar. Only headers and classes are read before training."""
    check_pillow()
    chosen = reading(options)
    train, val = (_images(folder / part, chosen, log) for part in ("train", "val"))
    return train, val


def _images(folder: Path, how: Reading, log: Log) -> ImageFiles:
    shards = sorted(folder.glob("*.tar"))
    if not shards:
        raise InputError(f"{folder} has no .tar files: expected shards with KEY.jpg and KEY.cls for each image")
    found = [pair for shard in shards for pair in _indexed(shard)]
    names, classes = zip(*found, strict=True)
    return ImageFiles(names, torch.tensor(classes, dtype=torch.int64), how, log, opened=open_image)


def open_image(name: str) -> BinaryIO:
    """Open an image by what `_indexed` calls it: "SHARD, MEMBER, bytes START+SIZE"."""
    shard, _, place = name.rsplit(", ", 2)
    start, _, size = place.removeprefix("bytes ").partition("+")
    with Path(shard).open("rb") as file:
        file.seek(int(start))
        content = file.read(int(size))
    if len(content) < int(size):
        raise DamagedImageError("the shard is cut short")
    return BytesIO(content)


def _indexed(shard: Path) -> list[tuple[str, int]]:
    """Return the images of a shard in its order, each with its class; raise for a shard that is not whole."""
    try:
        with shard.open("rb") as file:
            images, classes = _members(file)
    except (OSError, tarfile.TarError, TooLargeError, ValueError) as error:
        raise InputError(
            f"{shard} is no whole tar archive ({first_line(error)}): copy or write it again, uncompressed"
        ) from None
    if alone := sorted(images.keys() ^ classes.keys()):
        raise InputError(f"{shard}: {alone[0]!r} has only an image or only a class: expected KEY.jpg and KEY.cls")
    if not images:
        raise InputError(f"{shard} has no images: expected KEY.jpg ({', '.join(SUFFIXES)}) and KEY.cls, or remove it")
    return [(f"{shard}, {place}", classes[key]) for key, place in images.items()]


def _members(file: IO[bytes]) -> tuple[dict[str, str], dict[str, int]]:
    images, classes = dict[str, str](), dict[str, int]()
    with tarfile.open(fileobj=_Bounded(file), mode="r:") as tar:  # type: ignore[call-overload]
        for entry in _entries(tar):
            key, suffix = _key_and_suffix(entry.name)
            if suffix in SUFFIXES:
                if key in images:
                    raise ValueError(f"{key!r} has two images")
                images[key] = f"{entry.name}, bytes {entry.offset_data}+{entry.size}"
            elif suffix == ".cls":
                classes[key] = _class(file, entry)
        end = tar.offset
    file.seek(end)
    mark = file.read(_BLOCK)
    if len(mark) < _BLOCK or any(mark):  # tarfile takes a damaged header for the end
        raise ValueError(f"damaged or cut short at byte {end:,}")
    return images, classes


def _entries(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for number, entry in enumerate(tar, 1):
        if number > MOST_ENTRIES:
            raise TooLargeError(f"more than {MOST_ENTRIES:,} files")
        if not 0 <= entry.size <= MOST_BYTES or entry.sparse is not None:
            raise TooLargeError(f"{entry.name!r} has {entry.size:,} bytes or holes, at most {in_words(MOST_BYTES)}")
        if entry.isfile():
            yield entry


def _key_and_suffix(name: str) -> tuple[str, str]:
    """Split a name at the first dot of its last part, as WebDataset does.

    >>> _key_and_suffix("a.b/0001.JPG"), _key_and_suffix("0001.seg.png")
    (('a.b/0001', '.jpg'), ('0001', '.seg.png'))
    """
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix}".lower()


def _class(file: IO[bytes], entry: tarfile.TarInfo) -> int:
    file.seek(entry.offset_data)
    text = file.read(min(entry.size, _MOST_DIGITS)).decode("ascii", errors="replace").strip()
    if entry.size > _MOST_DIGITS or not text.isdecimal() or int(text) >= 2**31:
        raise ValueError(f"{entry.name} has {text!r}, expected the number of a class")
    return int(text)


class _Bounded:
    """As much of a file as tarfile needs; long names are read in one piece, as long as they say they are."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.tell = file, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MOST_AT_ONCE:
            raise TooLargeError(f"more than {in_words(MOST_AT_ONCE)} in a header")
        return self._file.read(size)

    def seek(self, place: int, *_: Any) -> int:
        return self._file.seek(place)


IMAGE_SHARDS = DataSpec(
    name="image-shards",
    title="photographs in tar shards train/*.tar and val/*.tar",
    input_shape=image_shape,
    files=(DataFile("train", 0, ""), DataFile("val", 0, "")),
    read=read_shards,
    hint="tar files as WebDataset writes them, with KEY.jpg and KEY.cls for each image",
)
