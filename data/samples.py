"""Samples: the interface of a split to the training loop, and a split in memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError

IGNORED = -100  # the target of an output that does not count
Batches = Iterator[tuple[Tensor, Tensor]]
Prepare = Callable[[Tensor], Tensor]  # a batch as it is stored → as the network takes it, on its device
Augment = Callable[[Tensor, torch.Generator], Tensor]  # a batch as it is stored → the same, changed at random


class Samples(Protocol):
    """One split of a data set: in memory, or read on demand."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input as the network takes it."""
        ...

    @property
    def labels(self) -> tuple[int, int]:
        """The lowest and the highest target."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice) -> "Samples": ...

    def to(self, device: torch.device | str) -> "Samples":
        """Return the same samples, with batches on another device."""
        ...

    def batches(self, size: int, generator: torch.Generator) -> Batches:
        """Yield one epoch of training: a new order, augmented; all randomness comes from the generator."""
        ...

    def in_order(self, size: int) -> Batches:
        """Yield all samples in order, not augmented: for evaluation."""
        ...


def as_it_is(x: Tensor) -> Tensor:
    """Return the inputs unchanged: they are stored as the network takes them."""
    return x


def check_batch_size(size: int, count: int, drop_last: bool = True) -> None:
    """Raise for a batch size that the samples cannot fill."""
    if size < 1 or (drop_last and size > count):
        raise InputError(f"batch size {size} does not fit: choose 1 to {count}, the number of samples")


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets, kept in memory so that a batch is one `index_select`.

    `x` is [N, ...]: float32 for images, or bytes that `prepare` turns into it; `y` is int64, [N] for classes.

    >>> split = Split(torch.zeros(5, 1, 2, 2), torch.tensor([0, 1, 0, 1, 0]))
    >>> len(split), [len(y) for _, y in split.batches(2, torch.Generator().manual_seed(0))]
    (5, [2, 2])
    """

    x: Tensor
    y: Tensor
    prepare: Prepare = as_it_is
    augment: Augment | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"a split needs one target per input: found {len(self.x)} inputs, {len(self.y)} targets")
        if self.y.dtype != torch.int64:
            raise InputError(f"the targets of a split are int64: found {self.y.dtype}, convert them with .long()")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input as the network takes it."""
        return tuple(self.prepare(self.x[:1]).shape[1:])

    @property
    def labels(self) -> tuple[int, int]:
        """The lowest and the highest target."""
        return (int(self.y.min()), int(self.y.max())) if len(self) else (0, 0)

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """What a program must do with inputs before the network sees them, as far as `prepare` defines it."""
        return getattr(self.prepare, "facts", {})

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, part: slice) -> "Split":
        return replace(self, x=self.x[part], y=self.y[part])

    def to(self, device: torch.device | str) -> "Split":
        """Return the same samples on another device."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def batches(self, size: int, generator: torch.Generator, *, drop_last: bool = True) -> Batches:
        """Yield one epoch in a new order, drawn on the CPU so that it is the same on every device."""
        check_batch_size(size, len(self), drop_last)
        order = torch.randperm(len(self), generator=generator).to(self.x.device)
        stop = len(self) - len(self) % size if drop_last else len(self)
        return (self._drawn(order[start : start + size], generator) for start in range(0, stop, size))

    def _drawn(self, part: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = self.x.index_select(0, part)
        x = x if self.augment is None else self.augment(x, generator)
        return self.prepare(x), self.y.index_select(0, part)

    def in_order(self, size: int) -> Batches:
        """Yield all samples in order, not augmented."""
        starts = range(0, len(self), size)
        return ((self.prepare(self.x[i : i + size]), self.y[i : i + size]) for i in starts)
