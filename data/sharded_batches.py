"""The part of a batch that each of several processes reads: together they see the samples of one process."""

from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

import torch

from rigl_compress.data.samples import Batches, Samples


@dataclass(frozen=True)
class Shard:
    """Which part of each batch a process reads, and how many batches of the epoch it leaves out at first.

    >>> [Shard(rank, 3).rows(100) for rank in range(3)]
    [slice(0, 33, None), slice(33, 66, None), slice(66, 100, None)]
    """

    rank: int = 0
    count: int = 1
    skip: int = 0

    def rows(self, size: int) -> slice:
        """Return the samples of a batch of this size: as many as in the other parts, or one more."""
        return slice(size * self.rank // self.count, size * (self.rank + 1) // self.count)


@runtime_checkable
class ShardedSamples(Protocol):
    """Samples that can read a part of each batch without reading the rest of it."""

    def sharded(self, size: int, generator: torch.Generator, shard: Shard) -> Batches:
        """Yield the same epoch as `batches`, of each batch the shard's rows."""
        ...


def sharded_batches(samples: Samples, size: int, generator: torch.Generator, shard: Shard) -> Batches:
    """Yield the shard's part of every batch of an epoch.

    Order and augmentation are those of the whole batch, whatever the number of parts: all of it is drawn from the
    generator, and where samples cannot be read apart from each other, the whole batch is read and cut.
    """
    if isinstance(samples, ShardedSamples):
        return samples.sharded(size, generator, shard)
    whole = islice(samples.batches(size, generator), shard.skip, None)
    return whole if shard.count == 1 else ((x[shard.rows(len(x))], y[shard.rows(len(y))]) for x, y in whole)
