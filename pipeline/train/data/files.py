"""Files of a data set on disk: where they may lie, whether they are the published ones, how they are written."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from rigl_compress.models.artifacts import write_bytes
from rigl_compress.models.errors import InputError

NAMED = "--data-dir"
ENVIRONMENT = "RIGL_COMPRESS_DATA"
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class DataFile:
    """A file as published: its name without `.gz`, and size and md5 of its uncompressed content."""

    name: str
    size: int
    md5: str

    def matches(self, content: bytes) -> bool:
        """Whether this is the published content.

        >>> DataFile("hello", 5, "5d41402abc4b2a76b9719d911017c592").matches(b"hello")
        True
        """
        return len(content) == self.size and md5(content) == self.md5


@dataclass(frozen=True)
class Place:
    """A folder to look in, and how people call it."""

    label: str
    root: Path


def md5(content: bytes) -> str:
    """The checksum under which these data sets are published: against damage, not against malice.

    >>> md5(b"hello")
    '5d41402abc4b2a76b9719d911017c592'
    """
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def cache_folder() -> Path:
    """Where fetched data sets are kept when no other folder is named."""
    return user_cache_path("rigl-compress", appauthor=False)


def places(data_dir: Path | None) -> list[Place]:
    """The folders to look in, best first: --data-dir, $RIGL_COMPRESS_DATA, the user's cache.

    >>> places(Path("digits"))[0] == Place("--data-dir", Path("digits"))
    True
    """
    from_environment = os.environ.get(ENVIRONMENT, "")
    named = [(NAMED, data_dir), (f"${ENVIRONMENT}", Path(from_environment) if from_environment else None)]
    return [Place(label, root) for label, root in [*named, ("user cache", cache_folder())] if root is not None]


def path_of(folder: Path, name: str) -> Path | None:
    """The file as it lies in the folder, plain or compressed, or None."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)


def missing(folder: Path, files: Iterable[DataFile]) -> tuple[str, ...]:
    """Names of the files that the folder does not hold."""
    return tuple(file.name for file in files if path_of(folder, file.name) is None)


def folder_in(root: Path, name: str, files: tuple[DataFile, ...]) -> Path | None:
    """The folder below root with at least one of the files: the one named like the data set, or root itself."""
    return next((folder for folder in (root / name, root) if len(missing(folder, files)) < len(files)), None)


def unpacked(content: bytes) -> bytes:
    """Gunzip what is gzip'd, hand back the rest as it is; raises OSError, EOFError or zlib.error for damage.

    >>> unpacked(gzip.compress(b"hello")), unpacked(b"hello")
    (b'hello', b'hello')
    """
    return gzip.decompress(content) if content.startswith(_GZIP) else content


def existing(folder: Path, name: str) -> Path:
    """The file as it lies in the folder, or InputError with the cure."""
    path = path_of(folder, name)
    if path is None:
        raise InputError(f"{folder} has no {name} or {name}.gz: get it with `rigl-compress data fetch`")
    return path


def read_content(path: Path) -> bytes:
    """Uncompressed content of a plain or gzip'd file, or InputError with the cure."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if path.suffix == ".gz" and not content.startswith(_GZIP):
        raise damaged(path, f"starts with {content[:2].hex() or 'nothing'}", "gzip, which starts with 1f8b")
    try:
        return unpacked(content)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, f"gzip breaks off ({error})", "a complete gzip file") from error


def damaged(path: Path, found: str, expected: str) -> InputError:
    """The error for a file that is not what it should be, in one sentence.

    >>> print(damaged(Path("a.gz"), "starts with 3c68", "gzip"))
    a.gz is damaged (starts with 3c68, expected gzip): put a sound copy there, or delete it and run `rigl-compress \
data fetch`
    """
    cure = "put a sound copy there, or delete it and run `rigl-compress data fetch`"
    return InputError(f"{path} is damaged ({found}, expected {expected}): {cure}")


def are_published(folder: Path, files: Iterable[DataFile]) -> bool:
    """Whether these files are the published ones.

    A set with a file of another size is somebody's own data in the same format: allowed, and said. Files of all the
    published sizes with other content are damaged in a way that their format cannot show, or of another data set
    under the same names: an error.
    """
    contents = [(file, read_content(existing(folder, file.name))) for file in files if file.md5]
    if any(len(content) != file.size for file, content in contents):
        return False
    for file, content in contents:
        if not file.matches(content):
            raise _other_content(existing(folder, file.name), md5(content), file.md5)
    return True


def _other_content(path: Path, found: str, expected: str) -> InputError:
    return InputError(
        f"{path} has the size of the published file but md5 {found}, expected {expected}: it is damaged or of another "
        "data set; give each data set a folder of its own, or delete the file and run `rigl-compress data fetch`"
    )


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each file whole or not at all."""
    try:
        for name, content in contents.items():
            write_bytes(folder / name, content)
    except OSError as error:
        raise InputError(
            f"cannot write to {folder} ({error.strerror or error}): name a writable folder with --data-dir"
        ) from error
