"""The processes that train one network together, each with its part of every batch."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from time import sleep
from typing import Any

import torch
from torch import Tensor, distributed

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.data.sharded_batches import Shard

TIMEOUT = 600.0  # seconds that a process waits for the others before it takes them for lost


@dataclass(frozen=True)
class World:
    """The number of this process, and how many there are. The first one, rank 0, writes and prints."""

    rank: int = 0
    count: int = 1

    @property
    def alone(self) -> bool:
        """Whether there is one process only."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def shard(self, skip: int = 0) -> Shard:
        """Return the part of each batch that is read here."""
        return Shard(self.rank, self.count, skip)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of tensors over all processes, in each of them the same bits."""
        if self.alone:
            return values
        summed = values.detach().clone()
        distributed.all_reduce(summed)
        return summed / self.count

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, value)
        return found

    @contextmanager
    def first_before(self, what: str) -> Iterator[None]:
        """Let rank 0 go through a block before all others: it fetches data, or makes files, that they then find."""
        store = None if self.alone else distributed.distributed_c10d._get_default_store()
        while store is not None and not self.first and not store.check([f"done/{what}"]):
            if store.check(["failed/0"]):
                raise InputError("rank 0 failed")  # and said why
            sleep(0.05)
        yield
        if store is not None and self.first:
            store.set(f"done/{what}", "-")

    def first_of(self, value: Any) -> Any:
        """Return the value of rank 0."""
        found = [value]
        if not self.alone:
            distributed.broadcast_object_list(found, src=0)
        return found[0]


ALONE = World()


def current_world() -> World:
    """Return the processes of torch's default group; without a group, this process alone.

    >>> current_world() == ALONE
    True
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return ALONE
    return World(distributed.get_rank(), distributed.get_world_size())


@dataclass(frozen=True)
class Launched:
    """What torchrun, or our own launcher, tells a process: its rank, and where the others are."""

    rank: int
    count: int
    local_rank: int
    local_count: int
    address: str

    @classmethod
    def found(cls, environment: Mapping[str, str] | None = None) -> "Launched | None":
        """Return what the environment says; None: this is the only process.

        >>> Launched.found({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}).rank
        1
        >>> Launched.found({"WORLD_SIZE": "1", "RANK": "0"}) is None
        True
        """
        known = os.environ if environment is None else environment
        if "RANK" not in known or int(known.get("WORLD_SIZE", "1")) < 2:
            return None
        rank, count = int(known["RANK"]), int(known["WORLD_SIZE"])
        local, together = int(known.get("LOCAL_RANK", rank)), int(known.get("LOCAL_WORLD_SIZE", count))
        address = f"{known.get('MASTER_ADDR', 'localhost')}:{known.get('MASTER_PORT', '29500')}"
        return cls(rank, count, local, together, address)


def device_of(name: str, launched: Launched) -> str:
    """Return the device of a process: of several GPUs each process has its own.

    >>> device_of("cpu", Launched(1, 2, 1, 2, ""))
    'cpu'
    """
    kind, _, number = name.partition(":")
    if kind == "mps":
        raise InputError("device mps trains in one process: use --device cpu for several")
    if kind == "cpu" or (kind == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if kind in ("auto", "cuda") and not number:
        if launched.local_count > torch.cuda.device_count():
            raise InputError(
                f"{launched.local_count} processes need as many GPUs, this machine has {torch.cuda.device_count()}: "
                "start fewer processes, or use --device cpu"
            )
        return f"cuda:{launched.local_rank}"
    raise InputError(f"device {name!r} is one for all processes: use auto, cpu or cuda")


def connect(launched: Launched, device: str, seconds: float = TIMEOUT) -> World:
    """Join the other processes: gloo between CPUs, nccl between GPUs. Rank, count and address are the environment's."""
    backend = "nccl" if device.startswith("cuda") else "gloo"
    _check_backend(backend)
    if backend == "nccl":
        torch.cuda.set_device(device)
    try:
        distributed.init_process_group(backend, timeout=timedelta(seconds=seconds))
    except (RuntimeError, ValueError) as error:  # torch's network errors are RuntimeErrors
        raise InputError(_connection_failure(launched, error, seconds)) from None
    return World(launched.rank, launched.count)


def disconnect() -> None:
    """Leave the group together: a thread of gloo that outlives Python ends the process with SIGABRT."""
    gc.collect()  # a replica holds its group, and with it the threads
    distributed.barrier()
    distributed.destroy_process_group()


@contextmanager
def connected(launched: Launched, device: str, seconds: float = TIMEOUT) -> Iterator[World]:
    """Join the other processes for a block; where it fails, the process is to be ended instead of disconnected."""
    yield connect(launched, device, seconds)
    disconnect()


def _check_backend(backend: str) -> None:
    if not distributed.is_available() or not getattr(distributed, f"is_{backend}_available")():
        raise InputError(
            f"this PyTorch has no {backend}, which several processes on this device need: train in one process, "
            "or install a PyTorch that has it"
        )


def _connection_failure(launched: Launched, error: Exception, seconds: float) -> str:
    text = str(error)
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        return f"the port of {launched.address} is in use: choose another (MASTER_PORT, or torchrun --master-port)"
    if "imeout" in text or "timed out" in text:
        return (
            f"not all {launched.count} processes came to {launched.address} within {seconds:g} s: start all of them, "
            "with the same MASTER_ADDR and MASTER_PORT"
        )
    return f"the {launched.count} processes cannot reach each other at {launched.address}: {one_line(error)}"
