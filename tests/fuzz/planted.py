"""Readers with faults on purpose, run by the driver in a process of its own: python planted.py STATE."""

import os
import signal
import sys
import time
from pathlib import Path

from fuzzing import driver
from fuzzing.binary import mutate_bytes
from fuzzing.outcomes import Reader, attempt
from fuzzing.state import State
from fuzzing.table import report
from rigl_compress.core.errors import InputError


def traceback(data: bytes, folder: Path) -> None:
    """Fails with what nobody should see where an input begins with a small byte."""
    (folder / "input").write_bytes(data)
    attempt("read", lambda: {0: 1}[data[0] // 128] if data else 0)


def sentence(data: bytes, folder: Path) -> None:
    """Refuses everything in a sentence."""

    def refuse() -> None:
        raise InputError("not this: give another")

    attempt("read", refuse)


def crash(data: bytes, folder: Path) -> None:
    """Ends the process."""
    os.kill(os.getpid(), signal.SIGSEGV)


def endless(data: bytes, folder: Path) -> None:
    """Computes for ever."""
    while True:
        pass


def asleep(data: bytes, folder: Path) -> None:
    """Waits for ever."""
    time.sleep(1000)


def main() -> None:
    """Run each for a few inputs; the limits are short."""
    driver.SLOW, driver.IDLE = 0.3, 3.0
    names = {"traceback": traceback, "sentence": sentence, "crash": crash, "endless": endless, "asleep": asleep}
    readers = [Reader(name, consume, mutate_bytes) for name, consume in names.items()]
    state = State.open(Path(sys.argv[1]), resume=False)
    for reader in readers:
        inputs, seconds = (200, 20.0) if reader.name in ("traceback", "sentence") else (200, 1.0)
        one = driver.Driver([reader], state, Path("none"), 1, False, inputs, time.monotonic() + seconds, 0)
        one.run()
    print(report(state.counts, one.shelf.all()))


if __name__ == "__main__":
    main()
