"""Files of a data set on disk: where they are searched, whether they are the published ones, how they are written."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from rigl_compress.core.artifacts import write_bytes
from rigl_compress.core.errors import InputError
from rigl_compress.data.bounded_decompression import (
    MOST,
    first_bytes,
    in_words,
    is_packed,
    opened,
    read_up_to,
)

NAMED = "--data-dir"
ENVIRONMENT = "RIGL_COMPRESS_DATA"


@dataclass(frozen=True)
class DataFile:
    """A file as published: its name without `.gz`, and size, md5 and sha256 of its uncompressed content.

    One of `others` stands in for it where it is missing.
    Publishers give md5, which detects damage; sha256 also detects tampering, and is empty where it is not known.
    """

    name: str
    size: int
    md5: str
    sha256: str = ""
    others: tuple[str, ...] = ()

    def matches(self, content: bytes) -> bool:
        """Whether this is the published content.

        >>> DataFile("hello", 5, "5d41402abc4b2a76b9719d911017c592").matches(b"hello")
        True
        """
        return len(content) == self.size and md5(content) == self.md5 and self.sha256 in ("", sha256(content))

    @property
    def most(self) -> int:
        """The largest number of bytes that is read of it."""
        return self.size or MOST


@dataclass(frozen=True)
class Location:
    """A folder to search, and its label in messages."""

    label: str
    root: Path


def md5(content: bytes) -> str:
    """Return the md5 checksum, with which these data sets are published: against damage, not tampering.

    >>> md5(b"hello")
    '5d41402abc4b2a76b9719d911017c592'
    """
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def sha256(content: bytes) -> str:
    """Return the sha256 checksum, against tampering.

    >>> sha256(b"hello")[:16]
    '2cf24dba5fb0a30e'
    """
    return hashlib.sha256(content).hexdigest()


def cache_folder() -> Path:
    """Return the folder of downloaded data sets when no other is given."""
    return user_cache_path("rigl-compress", appauthor=False)


def search_locations(data_dir: Path | None) -> list[Location]:
    """Return the folders to search, in order: --data-dir, $RIGL_COMPRESS_DATA, the user's cache.

    >>> search_locations(Path("digits"))[0] == Location("--data-dir", Path("digits"))
    True
    """
    from_environment = os.environ.get(ENVIRONMENT, "")
    named = [(NAMED, data_dir), (f"${ENVIRONMENT}", Path(from_environment) if from_environment else None)]
    return [Location(label, root) for label, root in [*named, ("user cache", cache_folder())] if root is not None]


def path_of(folder: Path, name: str) -> Path | None:
    """Return the file in the folder, plain or compressed, or None."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)


def missing(folder: Path, files: Iterable[DataFile]) -> tuple[str, ...]:
    """Return the names of files that the folder lacks."""
    return tuple(file.name for file in files if not any(path_of(folder, each) for each in (file.name, *file.others)))


def folder_in(root: Path, name: str, files: tuple[DataFile, ...]) -> Path | None:
    """Return the folder with at least one of the files: the one named like the data set, or root itself."""
    return next((folder for folder in (root / name, root) if len(missing(folder, files)) < len(files)), None)


def existing(folder: Path, name: str) -> Path:
    """Return the file in the folder; raise InputError if it is missing."""
    path = path_of(folder, name)
    if path is None:
        raise InputError(f"{folder} has no {name} or {name}.gz: get it with `rigl-compress data fetch`")
    return path


def read_content(path: Path, most: int | None = None) -> bytes:
    """Return the uncompressed content of a plain or gzip'd file; raise InputError if it is damaged.

    `most` is its largest size; without it a plain file has no limit, and a gzip'd one may unpack to `MOST`.
    """
    content = read_start(path, _most(path) if most is None else most)
    if most is not None and len(content) > most:
        raise damaged(path, f"more than {in_words(most)}", f"{in_words(most)} at most")
    if most is None and len(content) > _most(path):
        raise InputError(f"{path} unpacks to more than {in_words(MOST)}: unpack it yourself, e.g. with gunzip")
    return content


def _most(path: Path) -> int:
    return MOST if path.suffix == ".gz" or not path.is_file() or is_packed(path) else path.stat().st_size


def read_start(path: Path, most: int) -> bytes:
    """Return the first bytes of the uncompressed content: one more than `most`, if there are more."""
    try:
        if path.suffix == ".gz" and not is_packed(path):
            found = first_bytes(path).hex() or "nothing"
            raise damaged(path, f"starts with {found}", "gzip, which starts with 1f8b")
        with opened(path) as stream:
            return read_up_to(stream, most)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise damaged(path, f"gzip breaks off ({error})", "a complete gzip file") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


def damaged(path: Path, found: str, expected: str) -> InputError:
    """Return the error for a damaged file, in one sentence.

    >>> print(damaged(Path("a.gz"), "starts with 3c68", "gzip"))
    a.gz is damaged (starts with 3c68, expected gzip): replace it, or delete it and run `rigl-compress data \
fetch`
    """
    cure = "replace it, or delete it and run `rigl-compress data fetch`"
    return InputError(f"{path} is damaged ({found}, expected {expected}): {cure}")


def are_published(folder: Path, files: Iterable[DataFile]) -> bool:
    """Whether these files are the published ones.

    A set with a file of another size is custom data in the same format: allowed, and reported. Files of all the
    published sizes with other content are damaged, or of another data set under the same names: an error.
    """
    contents = [(file, read_start(existing(folder, file.name), file.size)) for file in files if file.md5]
    if any(len(content) != file.size for file, content in contents):
        return False
    for file, content in contents:
        if not file.matches(content):
            raise _other_content(existing(folder, file.name), content, file)
    return True


def difference(content: bytes, file: DataFile) -> str:
    """Return the checksum in which a content differs from the published one.

    >>> difference(b"HELLO", DataFile("hello", 5, "5d41402abc4b2a76b9719d911017c592"))
    'md5 eb61eead90e3b899c6bcbe27ac581660, expected 5d41402abc4b2a76b9719d911017c592'
    """
    if md5(content) != file.md5:
        return f"md5 {md5(content)}, expected {file.md5}"
    return f"sha256 {sha256(content)}, expected {file.sha256}"


def _other_content(path: Path, content: bytes, file: DataFile) -> InputError:
    return InputError(
        f"{path} has the size of the published file but {difference(content, file)}: it is damaged or of another "
        "data set; use one folder per data set, or delete the file and run `rigl-compress data fetch`"
    )


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each file atomically."""
    try:
        for name, content in contents.items():
            write_bytes(folder / name, content)
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror or error}): name a writable folder with --data-dir"
        ) from error
