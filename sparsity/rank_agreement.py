"""Replicas of one network in several processes: their connections agree after every update, and so do their gates."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, distributed, nn

from rigl_compress.core.errors import InputError

_MIX = -7046029254386353131  # the golden ratio in 64 bits: consecutive positions are spread over all of them


class DisagreementError(InputError):
    """The processes that train one network chose different connections."""


def is_distributed() -> bool:
    """Whether this process trains together with others."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def digest(positions: Tensor) -> Tensor:
    """Return a number for the active positions of a layer, the same wherever they are the same.

    >>> first, second, third = (digest(torch.tensor(each)).item() for each in ([1, 4], [2, 3], [1, 4]))
    >>> first == third, first == second
    (True, False)
    """
    spread = (positions + 1) * _MIX  # wraps around
    return (spread ^ (spread >> 29)).mul_(_MIX).sum()


def check_same_connections(active: Iterable[tuple[str, Tensor]], step: int) -> None:
    """Raise, in every process, where the active positions of a layer differ from those of rank 0.

    The positions are those of one layer after the other: only one of them is in memory.
    """
    digests = {name: digest(positions) for name, positions in active}
    own = torch.stack(list(digests.values()))
    both = torch.stack([own, ~own])  # the largest of ~x belongs to the smallest x
    distributed.all_reduce(both, distributed.ReduceOp.MAX)
    if torch.equal(both[0], ~both[1]):
        return
    found = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(found, own)
    rank, layer = _first_difference(torch.stack(found))
    raise DisagreementError(
        f"rank {rank} chose other connections of {list(digests)[layer]!r} than rank 0 at step {step}: average the "
        "gradients over all processes before sparse.step() (DistributedDataParallel does), and give every process "
        "the same weights, seed, learning rate and versions"
    )


def _first_difference(found: Tensor) -> tuple[int, int]:
    """Return the rank and the layer of the first number that is not rank 0's.

    >>> _first_difference(torch.tensor([[1, 2], [1, 2], [1, 3]]))
    (2, 1)
    """
    rank, layer = (found != found[0]).nonzero()[0].tolist()
    return rank, layer


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of parameters that are no part of the network: DistributedDataParallel leaves them out."""
    gradients = [each.grad for each in parameters if each.grad is not None]
    if gradients:
        flat = torch.cat([each.flatten() for each in gradients])
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
        for gradient, part in zip(gradients, torch.split(flat, [each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


@torch.no_grad()
def start_alike(parameters: Iterable[nn.Parameter]) -> None:
    """Copy the values of rank 0 to parameters that are no part of the network."""
    for each in parameters:
        distributed.broadcast(each.data, src=0)


def rows_of_rank(samples: int) -> tuple[int, slice]:
    """Return how many rows of noise to draw for the batches of all processes, and which of them are for this one."""
    if not is_distributed():
        return samples, slice(None)
    rank, count = distributed.get_rank(), distributed.get_world_size()
    return samples * count, slice(samples * rank, samples * (rank + 1))


def check_whole(parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise for parameters that are spread over processes (FSDP2, tensor parallelism)."""
    for name, parameter in parameters.items():
        if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
            raise InputError(
                f"{name} is a DTensor, spread over processes (FSDP2 or tensor parallelism): a layer's connections are "
                "chosen among all its weights, so every process needs all of them; use DistributedDataParallel"
            )
