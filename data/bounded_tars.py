"""Tar archives from untrusted sources: all decompressed bytes count against a limit, skipped members too."""

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from rigl_compress.data.bounded_decompression import MAGIC, TooLargeError, in_words

MOST_UNPACKED = 2**30  # WikiText-103 has 541 MB
MOST_ENTRIES = 10_000  # data sets have a dozen files
MOST_AT_ONCE = 2**22  # tarfile reads long names and tables of attributes in one piece, as long as they say they are
_KINDS = {MAGIC: gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}


@contextmanager
def opened_tar(file: IO[bytes]) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes]]]]:
    """Open a tar archive, however compressed, and yield its regular files one by one, each with its content to read."""
    with _unpacked(file) as stream, tarfile.open(fileobj=_Counted(stream), mode="r:") as tar:  # type: ignore[call-overload]
        yield _files(tar)


def _files(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for number, entry in enumerate(tar, 1):
        if number > MOST_ENTRIES:
            raise TooLargeError(f"more than {MOST_ENTRIES:,} files")
        if entry.size < 0 or entry.sparse is not None:  # tarfile would go back in the archive, and for ever
            raise tarfile.ReadError(f"{entry.name!r} has a size of {entry.size} or holes")
        if entry.isfile() and (stream := tar.extractfile(entry)):
            yield entry, stream


def _unpacked(file: IO[bytes]) -> IO[bytes]:
    head = file.read(8)
    file.seek(0)
    return next((unpack(file, "rb") for magic, unpack in _KINDS.items() if head.startswith(magic)), file)  # type: ignore[operator]


class _Counted:
    """As much of a file as tarfile needs, no further than the limit: to skip what is compressed is to unpack it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= MOST_AT_ONCE:
            raise TooLargeError(f"more than {in_words(MOST_AT_ONCE)} in a header")
        self._check(self._stream.tell() + size)
        return self._stream.read(size)

    def seek(self, place: int, *_: Any) -> int:
        self._check(place)
        return self._stream.seek(place)

    def _check(self, place: int) -> None:
        if not 0 <= place <= MOST_UNPACKED:
            raise TooLargeError(f"more than {in_words(MOST_UNPACKED)}")
