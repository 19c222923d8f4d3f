"""The lock of a folder: one process at a time writes into it. The kernel releases it when the process ends."""

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from time import monotonic, sleep

from rigl_compress.core.errors import InputError
from rigl_compress.core.provenance import command_line
from rigl_compress.core.temporary_files import collect, is_temporary, make_folder

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"
PATIENCE = 1.0  # seconds: a process that was killed a moment ago may still be on its way out
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
# By thread: another one of the same process is refused like another process.
_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if needed, and remove temporary files of processes that have ended.

    A process that holds a folder can lock it again. If another holds it, an error names that one.
    """
    real = folder.resolve()
    if real in _held.get():
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} exists and is not a folder: choose another folder")
    made = make_folder(folder)
    try:
        with _lock_file(folder):
            collect(folder)
            before = _held.set(_held.get() | {real})
            try:
                yield
            finally:
                _held.reset(before)
    finally:
        with suppress(OSError):  # the innermost that is not empty ends it
            for each in made:
                each.rmdir()


def leftover(path: Path) -> bool:
    """Whether a file is of no value to a user: a temporary one, or a lock."""
    return path.name == LOCK or is_temporary(path)


@contextmanager
def _lock_file(folder: Path) -> Iterator[None]:
    path = folder / LOCK
    handle = _acquired(path)
    try:
        with suppress(OSError):  # it is locked all the same, only its holder is unknown
            os.ftruncate(handle, 0)
            os.write(handle, _holder().encode())
        yield
    finally:
        with suppress(OSError):  # without a holder it has no effect
            path.unlink()
        os.close(handle)


def _acquired(path: Path) -> int:
    deadline = monotonic() + PATIENCE
    while True:
        with suppress(FileNotFoundError):  # who held the folder has just removed it
            make_folder(path.parent)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if _try_lock(handle, path) and _same_file(handle, path):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        if monotonic() >= deadline:
            raise InputError(
                f"{path.parent} is in use by {_recorded_holder(path)}: wait until it ends, or stop it, then try again"
            )
        sleep(0.05)


def _try_lock(handle: int, path: Path) -> bool:
    if sys.platform == "win32":
        return _unguarded(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return _unguarded(path)
    return True


def _unguarded(path: Path) -> bool:
    """Continue without a lock, with a warning."""
    warnings.warn(
        f"{path.parent} is on a file system without locks: see to it that no other process writes there", stacklevel=2
    )
    return True


def _same_file(handle: int, path: Path) -> bool:
    """Whether the file still has its name: its holder removes it before the lock is released."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _holder() -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {gethostname()} (`{command_line()}`, since {now})"


def _recorded_holder(path: Path) -> str:
    with suppress(OSError):
        if holder := path.read_text(encoding="utf-8", errors="replace")[:500]:
            return " ".join(holder.split())
    return "another process"
