"""Faults at the calls of the system: a library that is loaded before all others, and what it is told to do."""

import ctypes
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from tempfile import mkdtemp

SOURCE = Path(__file__).with_name("shim.c")
CONTROL = "FAULTS_CONTROL"


class Kind(IntEnum):
    """What happens; the numbers stand in shim.c."""

    WATCH = 0
    ENOSPC = 1
    EIO = 2
    SHORT = 3
    KILL = 4


class _Control(ctypes.Structure):
    """The same fields stand in shim.c."""

    _fields_ = (
        ("enabled", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("at", ctypes.c_long),
        ("count", ctypes.c_long),
        ("folder", ctypes.c_char * 1024),
        ("calls", ctypes.c_char * 8192),
    )


class Injector:
    """Tells the library what to do, and reads what it counted."""

    def __init__(self) -> None:
        with Path(os.environ[CONTROL]).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), ctypes.sizeof(_Control))
        self._control = _Control.from_buffer(self._memory)

    @contextmanager
    def armed(self, folder: Path, kind: Kind, at: int = 0) -> Iterator[None]:
        """Inject a fault at one call below a folder, in this process and in those that it starts in the block."""
        control = self._control
        control.kind, control.at, control.count = kind, at, 0
        control.folder, control.calls = str(folder).encode(), b""
        control.enabled = 1
        try:
            yield
        finally:
            control.enabled = 0

    @property
    def calls(self) -> str:
        """The calls of the last block, a letter for each: open, write, sync, rename, unlink, truncate, mkdir."""
        return bytes(self._control.calls)[: self._control.count].decode()


def unavailable_reason() -> str:
    """Return why faults cannot be injected here; nothing if they can."""
    if sys.platform != "linux":
        return "LD_PRELOAD and /proc are of Linux"
    return "" if shutil.which("cc") else "there is no C compiler (cc)"


def start_again_with_shim() -> None:
    """Replace this process by itself with the library loaded; returns in the process that has it."""
    if CONTROL in os.environ:
        return
    folder = Path(mkdtemp(prefix="rigl-faults-"))
    library, control = folder / "shim.so", folder / "control"
    subprocess.run(["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    control.write_bytes(bytes(ctypes.sizeof(_Control)))
    environment = {**os.environ, CONTROL: str(control), "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def remove_shim() -> None:
    """Remove the folder of the library; it stays loaded."""
    shutil.rmtree(Path(os.environ[CONTROL]).parent, ignore_errors=True)
