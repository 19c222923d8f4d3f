"""Files that only the user could have written: those of a cache are read without a second look at what they say.

A folder or file that belongs to somebody else, or that others can write to, is not used.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rigl_compress.core.temporary_files import temporary_for

_OPENING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class NotPrivateError(OSError):
    """A file or folder that others can write to."""


def private_folder(folder: Path) -> Path:
    """Create a folder for the user alone; raise `OSError` if it cannot be trusted."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotPrivateError(f"{folder} is no folder")
    _check_owner(found, folder)
    return folder


def read_private(path: Path) -> bytes:
    """Read a file of the user; raise `OSError` if it is missing, no plain file, or could be from somebody else."""
    descriptor = os.open(path, _OPENING)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotPrivateError(f"{path} is no regular file")
        _check_owner(found, path)
        return file.read()


def _check_owner(found: os.stat_result, path: Path) -> None:
    if os.name == "posix" and (found.st_uid != os.geteuid() or found.st_mode & _BY_OTHERS):
        raise NotPrivateError(f"{path} belongs to another user, or others can write to it")


def write_private(path: Path, *parts: bytes) -> None:
    """Write a file for the user alone, atomically; not synced, as whoever reads it checks its content."""
    with temporary_for(path) as temporary:
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
        temporary.replace(path)


def keep_newest(folder: Path, suffix: str, most: int) -> None:
    """Remove the files of a suffix that were used longest ago, until the others have at most so many bytes."""
    total = 0
    for size, path in _by_use(folder, suffix):
        total += size
        if total > most:
            with suppress(OSError):
                path.unlink()


def _by_use(folder: Path, suffix: str) -> Iterator[tuple[int, Path]]:
    """Yield the sizes and paths of files, the last used first."""
    found = []
    for path in folder.glob(f"*{suffix}"):
        with suppress(OSError):
            status = path.lstat()
            found.append((status.st_mtime_ns, status.st_size, path))
    yield from ((size, path) for _, size, path in sorted(found, reverse=True))


def mark_used(path: Path) -> None:
    """Note that a file was used now."""
    with suppress(OSError):
        os.utime(path)
