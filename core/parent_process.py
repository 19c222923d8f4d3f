"""A process that ends with its parent, however the parent ends."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from multiprocessing import parent_process
from threading import Thread
from time import sleep

SECONDS = 0.5  # between two checks, where the kernel does not notify
_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """End this process, at once, when the process `parent` that started it has ended."""
    _ask_kernel()
    if _orphaned(parent):  # before the kernel watched it
        os._exit(1)
    Thread(target=_watch, args=(parent,), daemon=True).start()


def end_with_parent() -> None:
    """End this worker of `multiprocessing` with the process that started it."""
    started_by = parent_process()
    if started_by is not None and started_by.pid is not None:
        end_with(started_by.pid)


def _ask_kernel() -> None:
    """On Linux the kernel kills this process when its parent ends, even if that is deep in a computation."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _orphaned(parent: int) -> bool:
    """Whether the parent has ended: orphans get another one. Elsewhere a launcher may stand between the two."""
    return os.name == "posix" and os.getppid() != parent


def _watch(parent: int) -> None:
    """Wait for the end of the parent."""
    started_by = parent_process()
    while not _orphaned(parent) and (started_by is None or started_by.is_alive()):
        started_by.join(SECONDS) if started_by is not None else sleep(SECONDS)
    os._exit(1)  # all files are whole or not there: there is nothing to put in order
