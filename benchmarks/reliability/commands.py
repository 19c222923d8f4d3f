"""The command line in forked processes: everything is imported once, and each call starts with a fresh copy."""

import ctypes
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
SECONDS = 300.0  # after which a call hangs


@dataclass(frozen=True)
class Ended:
    """How a call ended: its exit code (negative: the signal), what it said on stderr, and whether processes stayed."""

    code: int
    said: str
    left: int = 0


def import_what_is_imported_by(*calls: Sequence[object]) -> None:
    """Import now what commands import when they are called: they are called in another process, which tells.

    Nothing is computed in this process, so that it has one thread only and can fork.
    """
    import torch

    torch.set_num_threads(1)  # more wait for each other, with networks so small
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for each in calls:
            if _called([str(word) for word in each]):
                os._exit(1)
        os.write(writing, " ".join(sys.modules).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as told:
        names = told.read().split()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a command failed before any fault was injected; its error stands above")
    with warnings.catch_warnings(action="ignore"):
        for name in names:
            with suppress(Exception):  # made by other modules, not from files
                import_module(name)


def fork_workers() -> None:
    """Let the workers of sweep and compare be forked too: each would import torch for seconds."""
    from multiprocessing import get_context

    from rigl_compress.experiments import scheduler

    scheduler._start_process = get_context("fork").Process  # type: ignore[assignment]


def adopt_orphans() -> None:
    """Become the parent of processes whose own has ended: those that go on are seen, and can be ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(arguments: Sequence[object]) -> tuple[int, int]:
    """Start a command in a forked process; gives its number and the reading end of its stderr."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    code = 70
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for target, handle in enumerate((nowhere, nowhere, writing)):
            os.dup2(handle, target)
        os.setpgid(0, 0)
        code = _called([str(each) for each in arguments])
    finally:
        os._exit(code)


def _called(arguments: list[str]) -> int:
    from rigl_compress.cli.main import main

    sys.argv = ["rigl-compress", *arguments]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


def wait(child: int, reading: int, poll: Callable[[float], None] = lambda _: None) -> Ended:
    """Wait for a command and all its descendants; those that outlive it by seconds are counted, and ended."""
    said, begin, code = bytearray(), monotonic(), None
    ended_at = 0.0
    while True:
        poll(monotonic() - begin)
        if select.select([reading], [], [], 0.01)[0]:
            said += os.read(reading, 65536)
        code = _reaped(child, code)
        if code is None and monotonic() - begin > SECONDS:
            os.kill(child, signal.SIGKILL)
        if code is not None:
            ended_at = ended_at or monotonic()
            if not (others := _children()) or monotonic() - ended_at > 5:
                break
    for other in others:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
    while select.select([reading], [], [], 0)[0] and (more := os.read(reading, 65536)):
        said += more
    os.close(reading)
    return Ended(code, said.decode(errors="replace"), len(others))


def _reaped(child: int, code: int | None) -> int | None:
    """Collect what has ended; gives the exit code of the command once it is known."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                code = os.waitstatus_to_exitcode(found[1])
    except ChildProcessError:
        pass
    return code


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def call(*arguments: object) -> Ended:
    """Call a command and wait for it."""
    return wait(*start(arguments))


def disturbed(arguments: Sequence[object], moment: float, disturb: Callable[[int], None]) -> Ended:
    """Call a command, do something to its process after so many seconds, and wait for the end."""
    child, reading = start(arguments)
    sent = False

    def poll(seconds: float) -> None:
        nonlocal sent
        if not sent and seconds >= moment:
            sent = True
            disturb(child)

    return wait(child, reading, poll)


def must(*arguments: Any) -> None:
    """Call a command that has to succeed."""
    ended = call(*arguments)
    if ended.code:
        raise RuntimeError(f"rigl-compress {' '.join(map(str, arguments))}: {ended.said}")
