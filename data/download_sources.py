"""Sources of missing files: a title, and a function that downloads them or raises SourceError."""

import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from threading import Thread
from typing import TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

from rigl_compress.data.bounded_decompression import TooLargeError, unpacked
from rigl_compress.data.data_files import DataFile, difference

Log = Callable[[str], None]
T = TypeVar("T")

# A network that swallows packets costs one of these per mirror, once per process, before the next source has its turn.
OPEN_SECONDS = 5.0
# Silence in the middle of a download.
READ_SECONDS = 10.0
# The largest single file here has 26 MB: 5 minutes are enough at 100 kB/s, and end a download that trickles.
FILE_SECONDS = 300.0
_CHUNK = 1 << 18
_OVERHEAD = 4096  # of gzip, over what it packs, for data that cannot be made smaller


class SourceError(Exception):
    """This source is not available; the next one may be."""


@dataclass(frozen=True)
class Source:
    """Gets the files by name, as uncompressed content. The caller checks them against their checksums."""

    title: str
    get: Callable[[Sequence[DataFile], Log], Mapping[str, bytes]]


def mirror(url: str, suffix: str = ".gz") -> Source:
    """Return a source of files below a URL.

    >>> mirror("https://example.org/mnist/").title
    'https://example.org/mnist/'
    """

    def get(files: Sequence[DataFile], log: Log) -> Mapping[str, bytes]:
        return {file.name: _downloaded(f"{url}{file.name}{suffix}", file, log) for file in files}

    return Source(url, get)


def web_file(url: str) -> Source:
    """Return a source of one file at a URL, where it may have another name.

    >>> web_file("https://example.org/input.txt").title
    'https://example.org/input.txt'
    """

    def get(files: Sequence[DataFile], log: Log) -> Mapping[str, bytes]:
        return {file.name: _downloaded(url, file, log) for file in files}

    return Source(url, get)


def _downloaded(url: str, file: DataFile, log: Log) -> bytes:
    content = download(url, log, FILE_SECONDS, file.most + file.most // 100 + _OVERHEAD)
    try:
        return unpacked(content, file.most)
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(str(error)) from error


def download(url: str, log: Log, seconds: float, most: int) -> bytes:
    """Download a URL of at most so many bytes, or raise SourceError."""
    log(f"fetching {url}")
    try:
        with in_time(lambda: _open(url), OPEN_SECONDS) as response:
            return _read(response, seconds, most)
    except (OSError, HTTPException, EOFError, ValueError) as error:
        raise SourceError(str(error) or type(error).__name__) from error


def _open(url: str) -> HTTPResponse:
    try:
        response: HTTPResponse = urlopen(url, timeout=READ_SECONDS)
    except HTTPError as error:
        error.close()  # it holds the connection open
        raise
    return response


def _read(response: HTTPResponse, seconds: float, most: int) -> bytes:
    content, deadline = bytearray(), time.monotonic() + seconds
    if (response.length or 0) > most:
        raise TooLargeError(f"{response.length:,} bytes are offered, at most {most:,} are expected")
    while chunk := response.read(_CHUNK):
        content += chunk
        if len(content) > most:
            raise TooLargeError(f"more than the expected {most:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"more than {seconds:.0f} s for one file")
    if response.length:  # what the server still owes; read() ends without a word
        raise EOFError(f"the download broke off {response.length} bytes before its end")
    return bytes(content)


def in_time(call: Callable[[], T], seconds: float) -> T:
    """Wait for a call no longer than this. A thread, because a socket's timeout does not cover the look-up of a name.

    >>> in_time(lambda: 2 + 2, 1.0)
    4
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)

    Thread(target=work, daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        raise TimeoutError(f"no answer in {seconds:g} s") from None


def checked(contents: Mapping[str, bytes], files: Sequence[DataFile]) -> dict[str, bytes]:
    """The wanted files and no others, or SourceError for the first that is not the published one.

    >>> hello = DataFile("hello", 5, "5d41402abc4b2a76b9719d911017c592")
    >>> checked({"hello": b"hello", "readme": b"..."}, [hello])
    {'hello': b'hello'}
    >>> checked({"hello": b"HELLO"}, [hello])
    Traceback (most recent call last):
    rigl_compress.data.download_sources.SourceError: hello: md5 eb61eead90e3b899c6bcbe27ac581660, expected \
5d41402abc4b2a76b9719d911017c592
    """
    for file in files:
        if file.name not in contents:
            raise SourceError(f"{file.name} is not in it")
        if file.md5 and not file.matches(contents[file.name]):
            raise SourceError(f"{file.name}: {difference(contents[file.name], file)}")
    return {file.name: contents[file.name] for file in files}
