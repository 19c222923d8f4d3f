"""Decompression with a size limit: a gzip file of megabytes can unpack to gigabytes."""

import gzip
import io
from pathlib import Path
from typing import Protocol
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipInfo

MAGIC = b"\x1f\x8b"
# The limit for a user's .gz file, and for an archive member of unknown size: ten times MNIST.
MOST = 512 * 2**20
_CHUNK = 2**20


class Stream(Protocol):
    """A readable stream."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, none at the end."""


class TooLargeError(OSError):
    """The content is larger than the limit."""


def in_words(size: int) -> str:
    """Format a size.

    >>> in_words(MOST), in_words(47_040_016)
    ('512 MiB', '47,040,016 bytes')
    """
    return f"{size // 2**20:,} MiB" if size and size % 2**20 == 0 else f"{size:,} bytes"


def read_most(stream: Stream, most: int) -> bytes:
    """Read a stream to its end, or raise TooLargeError as soon as it has more than so many bytes.

    >>> read_most(io.BytesIO(b"hello"), 5)
    b'hello'
    >>> read_most(io.BytesIO(b"hello"), 4)
    Traceback (most recent call last):
    rigl_compress.data.bounded_decompression.TooLargeError: more than 4 bytes
    """
    found = read_up_to(stream, most)
    if len(found) > most:
        raise TooLargeError(f"more than {in_words(most)}")
    return found


def read_up_to(stream: Stream, most: int) -> bytes:
    """Read a stream to its end, but stop at one byte more than `most`: enough to know that there are more.

    In chunks: a single `read` would allocate `most` bytes.
    """
    chunks, left = [], most + 1
    while left and (chunk := stream.read(min(left, _CHUNK))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def check_packing(info: ZipInfo) -> None:
    """Refuse a member whose content cannot be had bit by bit: of bzip2 and LZMA zipfile unpacks what it reads whole."""
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise BadZipFile(f"{info.filename} is not packed by deflate")


def unpacked(content: bytes, most: int = MOST) -> bytes:
    """Return the content, decompressed if it is gzip'd; raises OSError, EOFError or zlib.error for damage.

    >>> unpacked(gzip.compress(b"hello")), unpacked(b"hello")
    (b'hello', b'hello')
    """
    stream = io.BytesIO(content)
    return read_most(gzip.GzipFile(fileobj=stream) if content.startswith(MAGIC) else stream, most)


def first_bytes(path: Path) -> bytes:
    """Return the bytes that identify gzip; raises OSError where they cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC))


def is_packed(path: Path) -> bool:
    """Whether a file is gzip'd, whatever its name; raises OSError where it cannot be read."""
    return first_bytes(path) == MAGIC


def opened(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """Open a plain or gzip'd file for its uncompressed content."""
    return gzip.open(path) if is_packed(path) else path.open("rb")
