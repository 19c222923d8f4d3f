"""The processes of `train`: started here, by torchrun, or this one alone."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from rigl_compress.cli.main import KNOWN, report
from rigl_compress.core.parent_process import end_with
from rigl_compress.pipeline.train.launch_processes import PARENT, launch
from rigl_compress.pipeline.train.process_group import ALONE, Launched, World, connected, current_world, device_of
from rigl_compress.pipeline.train.rank_failures import explaining, is_lost_connection

SECONDS = "RIGL_COMPRESS_TIMEOUT"  # the variable that has the seconds to wait for other processes


@contextmanager
def joined(processes: int | None, device: str, *, quick: bool) -> Iterator[tuple[World, str]]:
    """Yield the processes that train together, and the device of this one. `quick`: one process is enough.

    The launcher itself never gets there: it ends with the exit code of the run. One of several processes ends here if
    anything fails; rank 0 prints the reason.
    """
    launched = Launched.found()
    if launched is None and (processes or 1) > 1 and not quick:
        sys.exit(launch(processes or 1, sys.argv[1:]))
    if launched is None:
        yield ALONE, device
        return
    if processes not in (None, launched.count):
        raise click.UsageError(f"--processes is {processes}, torchrun started {launched.count}: leave it out")
    _end_with_launcher()
    try:
        with explaining(launched), connected(launched, device_of(device, launched), _timeout()) as world:
            yield world, device_of(device, launched)
    except BaseException as error:
        _end(launched, error)


def _timeout() -> float:
    return float(os.environ.get(SECONDS, "600"))


def _end_with_launcher() -> None:
    if PARENT in os.environ and os.environ[PARENT] == str(os.getppid()):
        end_with(os.getppid())


def _end(launched: Launched, error: BaseException) -> NoReturn:
    """Print the reason in rank 0 and end at once: threads that wait for lost processes cannot be joined."""
    code = 1
    try:
        expected = isinstance(error, (*KNOWN, KeyboardInterrupt)) or is_lost_connection(error)
        if not expected or "--traceback" in sys.argv:
            traceback.print_exception(error)
        elif launched.rank == 0 or current_world().alone:  # not connected yet: rank 0 hears nothing
            code = report(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
