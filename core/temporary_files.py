"""Temporary files: named after the process that writes them, so that those of processes that ended can be removed."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import gethostname
from time import time

# Processes of another host cannot be checked; no file takes a day to write.
DAY = 24 * 3600
_NAME = re.compile(r"\.(?P<name>.+)\.(?P<host>[\w-]+)\.(?P<pid>\d+)\.tmp", re.DOTALL)
_CANNOT_SYNC_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_writing: set[Path] = set()


@contextmanager
def temporary_for(path: Path) -> Iterator[Path]:
    """Yield the temporary file beside a file that is to be written; what is left of it at the end is removed."""
    collect(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.tmp")
    _writing.add(temporary.absolute())
    try:
        yield temporary
    finally:
        _writing.discard(temporary.absolute())
        with suppress(OSError):  # the earlier error is the one to report
            if temporary.exists():
                temporary.unlink()


def is_temporary(path: Path) -> bool:
    """Whether a file is a temporary one of ours, by its name.

    >>> is_temporary(Path("run/.model.safetensors.host.123.tmp")), is_temporary(Path("run/.notes.tmp"))
    (True, False)
    """
    return _NAME.fullmatch(path.name) is not None


def collect(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that ended processes left in a folder: all of them, or those of one file."""
    try:
        found = [(path, match) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    except OSError:
        return
    for path, match in found:
        if (name is None or match["name"] == name) and _abandoned(path, match["host"], int(match["pid"])):
            with suppress(OSError):
                path.unlink()


def _abandoned(path: Path, host: str, pid: int) -> bool:
    if host == _host() and os.name == "posix":
        return path.absolute() not in _writing if pid == os.getpid() else not _alive(pid)
    try:
        return time() - path.stat().st_mtime > DAY
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it runs and belongs to another user
        return True
    return True


def _host() -> str:
    return re.sub(r"[^\w-]", "_", gethostname()) or "_"


def make_folder(folder: Path) -> list[Path]:
    """Create a folder and those above it, durably; return those that were created, the innermost first."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)
    return missing


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can do that."""
    if os.name != "posix":
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # files can be put into it all the same
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC_FOLDERS:
            raise
    finally:
        os.close(handle)
