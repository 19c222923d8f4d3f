"""Start the processes of `--processes N` on this machine, and end all of them when one fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from time import monotonic, sleep
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rigl_compress.core.errors import InputError, StoppedError

PARENT = "RIGL_COMPRESS_LAUNCHER"  # the variable that has the launcher's process id
GRACE = 10.0  # seconds for the other processes to end by themselves after one has failed
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_start_process = subprocess.Popen


def launch(count: int, arguments: Sequence[str]) -> int:
    """Run the command line in so many processes; return the exit code of the run.

    The launcher keeps the store by which they find each other, on a port that is free. It passes signals on.
    """
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    command = [sys.executable, "-m", "rigl_compress", *arguments]
    processes = [_start_process(command, env=_environment(rank, count, store.port)) for rank in range(count)]
    before = [signal.signal(number, lambda received, _: _pass_on(processes, received)) for number in _SIGNALS]
    try:
        codes = _wait(processes)
    finally:
        _end(processes)
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
    return _exit_code(codes)


def _environment(rank: int, count: int, port: int) -> dict[str, str]:
    threads = str(max(1, len(os.sched_getaffinity(0)) // count if hasattr(os, "sched_getaffinity") else 1))
    own: dict[str, Any] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    own |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    own |= {PARENT: os.getpid()}
    return {"OMP_NUM_THREADS": threads, **os.environ, **{key: str(value) for key, value in own.items()}}


def _pass_on(processes: "Sequence[subprocess.Popen[Any]]", number: int) -> None:
    if number == signal.SIGINT:
        return  # the terminal sends it to all of them
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def _wait(processes: "Sequence[subprocess.Popen[Any]]") -> list[int | None]:
    """Wait for all processes; after the first that fails, no longer than the grace."""
    deadline = None
    while True:
        codes = [process.poll() for process in processes]
        if None not in codes:
            return codes
        if deadline is None and any(codes):
            deadline = monotonic() + GRACE
        if deadline is not None and monotonic() > deadline:
            return codes
        sleep(0.05)


def _end(processes: "Sequence[subprocess.Popen[Any]]") -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()


def _exit_code(codes: Sequence[int | None]) -> int:
    """Return the exit code of rank 0, which has said why; raise where it was killed before it could.

    >>> _exit_code([0, 0]), _exit_code([2, 1])
    (0, 2)
    """
    killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
    if not killed or (codes[0] or 0) > 0:
        return next((code for code in codes if code), 0) or 0
    number = signal.Signals(-(codes[killed[0]] or 0))
    if number == signal.SIGTERM:
        raise StoppedError("stopped by SIGTERM before the first step: the same command starts over")
    raise InputError(
        f"rank {killed[0]} was ended by {number.name} (no memory?): resume from the last checkpoint with resume=True"
    )
