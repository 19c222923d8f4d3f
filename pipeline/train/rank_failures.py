"""The end of several processes after one of them failed: rank 0 says which and why, and all of them end."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from torch import distributed

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.pipeline.train.process_group import Launched

PATIENCE = 5.0  # seconds that rank 0 waits for the others to say why they failed
_LOST = ("gloo", "nccl", "closed by peer", "connection reset", "broken pipe", "timed out", "tcpstore", "sendbytes")


class LostRankError(InputError):
    """Another process of a run has ended, or no longer answers."""


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error comes from another process that has ended or hangs, not from this one.

    >>> is_lost_connection(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    True
    >>> is_lost_connection(RuntimeError("shapes differ"))
    False
    """
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _LOST)


@contextmanager
def explaining(launched: Launched) -> Iterator[None]:
    """Report to the other processes why this one fails; in rank 0, raise what another process reported.

    In the other processes the error goes on, for an exit code; it is not to be printed.
    """
    try:
        yield
    except Exception as error:
        lost = is_lost_connection(error)
        _tell(launched.rank, "" if lost else _words(error))
        if lost and launched.rank == 0:
            raise LostRankError(_first_reason(launched)) from None
        raise


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {one_line(error)}"


def _tell(rank: int, reason: str) -> None:
    with suppress(Exception):  # the store is gone with rank 0, or never was
        _store().set(f"failed/{rank}", reason or "-")


def _first_reason(launched: Launched) -> str:
    """Return what rank 0 says: the reason of the first process that has one of its own, or which one is lost."""
    heard = _heard(launched, PATIENCE)
    own = {rank: reason for rank, reason in heard.items() if reason != "-" and rank}
    if own:
        rank, reason = min(own.items())
        return f"rank {rank}: {reason}"
    missing = sorted({*range(1, launched.count)} - {*heard})
    if missing:
        named = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
        return (
            f"{named} ended without an error, or no longer answers (killed, out of memory, or hanging?): "
            "resume from the last checkpoint with resume=True"
        )
    return "the connection between the processes was lost: resume from the last checkpoint with resume=True"


def _heard(launched: Launched, seconds: float) -> dict[int, str]:
    """Return what the other processes reported, after all of them or as long as the patience lasts."""
    deadline, heard = monotonic() + seconds, dict[int, str]()
    while True:
        for rank in range(1, launched.count):
            with suppress(Exception):
                if rank not in heard and _store().check([f"failed/{rank}"]):
                    heard[rank] = _store().get(f"failed/{rank}").decode()
        enough = len(heard) == launched.count - 1 or any(reason != "-" for reason in heard.values())
        if enough or monotonic() >= deadline:
            return heard
        sleep(0.05)


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()
