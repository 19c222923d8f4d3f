"""Data sets and data loaders of torch as samples: what a function of the user returns instead of a DataSet."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.download_sources import Log
from rigl_compress.data.samples import Batches, check_batch_size

_INPUTS = ("input_ids", "pixel_values", "inputs", "x", "image")
_FLAGS = ("attention_mask", "token_type_ids")  # of tokens: see models/libraries/huggingface_outputs.py
_TARGETS = ("labels", "label", "targets", "y")


def pair_of(batch: Any) -> tuple[Tensor, Tensor]:
    """Return inputs and int64 targets of a batch, a pair or a dict; tokens with masks become [N, 2 or 3, length].

    >>> x, y = pair_of({"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(2, 5), "labels": [0, 1]})
    >>> x.shape, y.tolist()
    (torch.Size([2, 2, 5]), [0, 1])
    """
    if isinstance(batch, Mapping):
        return _pair_of_table(batch)
    if not isinstance(batch, Sequence) or len(batch) != 2:
        found = f"{len(batch)} values" if isinstance(batch, Sequence) else f"a {type(batch).__name__}"
        raise InputError(
            f"a batch of your data has {found}, expected (inputs, targets), or a dict of input_ids and labels"
        )
    return _tensor(batch[0]), _classes(batch[1])


def _pair_of_table(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    x = _first(batch, _INPUTS, "inputs")
    flags = [_tensor(batch[name]).to(x.dtype) for name in _FLAGS if name in batch]
    if _FLAGS[1] in batch and _FLAGS[0] not in batch:
        raise InputError("a batch of your data has token_type_ids without an attention_mask: add it, or leave both out")
    return torch.stack([x, *flags], dim=1) if flags else x, _classes(_first(batch, _TARGETS, "targets"))


def _first(batch: Mapping[str, Any], names: Sequence[str], what: str) -> Tensor:
    found = [name for name in names if name in batch]
    if not found:
        raise InputError(
            f"a batch of your data has {', '.join(map(str, batch))}, expected {what} as {' or '.join(names)}"
        )
    return _tensor(batch[found[0]])


def _tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.as_tensor(values)


def _classes(values: Any) -> Tensor:
    """Return targets as class numbers.

    >>> _classes([2.0, 0.0]).tolist()
    [2, 0]
    >>> _classes([0.5])
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: targets of your data are numbers such as 0.5, expected classes, whole \
numbers from 0: networks are trained to tell classes apart
    """
    targets = _tensor(values)
    broken = targets[targets != targets.trunc()] if targets.is_floating_point() else targets[:0]
    if broken.numel():
        raise InputError(
            f"targets of your data are numbers such as {broken.reshape(-1)[0]:.4g}, expected classes, whole numbers "
            "from 0: networks are trained to tell classes apart"
        )
    return targets.to(torch.int64)


def _collated(collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    try:
        return collate(samples)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"samples of your data do not make a batch: {first_line(error)}; give all samples one shape"
        ) from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let the global random numbers of Python, NumPy and torch follow from a seed, as long as the block lasts."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _drawn(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (1,), generator=generator))


@dataclass(frozen=True, eq=False)
class TorchSamples:
    """A torch Dataset of (input, class) or dicts, whose order is drawn here; what it draws itself follows from it."""

    dataset: Any
    labels: tuple[int, int]
    collate: Callable[[list[Any]], Any] = default_collate
    device: torch.device | str = "cpu"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return tuple(self._batch([0], 0)[0].shape[1:])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, part: slice) -> "TorchSamples":
        return replace(self, dataset=Subset(self.dataset, range(len(self))[part]))

    def to(self, device: torch.device | str) -> "TorchSamples":
        """Return the same samples, with batches on another device."""
        return replace(self, device=device)

    def batches(self, size: int, generator: torch.Generator) -> Batches:
        """Yield one epoch in a new order."""
        check_batch_size(size, len(self))
        order = torch.randperm(len(self), generator=generator).tolist()
        seed = _drawn(generator)
        starts = range(0, len(self) - len(self) % size, size)
        return (self._batch(order[start : start + size], seed + start) for start in starts)

    def in_order(self, size: int) -> Batches:
        """Yield all samples in order."""
        starts = range(0, len(self), size)
        return (self._batch(range(start, min(len(self), start + size)), start) for start in starts)

    def _batch(self, indices: Iterable[int], seed: int) -> tuple[Tensor, Tensor]:
        with _seeded(seed):
            x, y = pair_of(_collated(self.collate, [self.dataset[index] for index in indices]))
        return x.to(self.device), y.to(self.device)


@dataclass(frozen=True, eq=False)
class LoadedBatches:
    """The batches of a DataLoader: their size and order are those of the loader; requested sizes are not used."""

    loader: "DataLoader[Any]"
    labels: tuple[int, int]
    device: torch.device | str = "cpu"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self[:1].input_shape

    def __len__(self) -> int:
        return len(self.loader.sampler)  # type: ignore[arg-type]

    def __getitem__(self, part: slice) -> TorchSamples:
        whole = TorchSamples(self.loader.dataset, self.labels, self.loader.collate_fn, self.device)
        if len(whole) != len(self) and part != slice(1):
            raise InputError("a DataLoader with a sampler of its own has no last samples to hold out: return Datasets")
        return whole[part]

    def to(self, device: torch.device | str) -> "LoadedBatches":
        """Return the same batches on another device."""
        return replace(self, device=device)

    def batches(self, size: int, generator: torch.Generator) -> Batches:
        """Yield one epoch of whole batches."""
        del size
        whole = len(self) // (self.loader.batch_size or 1)
        return islice(self._batches(_drawn(generator)), whole)

    def in_order(self, size: int) -> Batches:
        """Yield all batches."""
        del size
        return self._batches(0)

    def _batches(self, seed: int) -> Batches:
        if isinstance(self.loader.generator, torch.Generator):
            self.loader.generator.manual_seed(seed % 2**63)
        with _seeded(seed):
            batches = iter(self.loader)
        for number in range(len(self.loader)):
            with _seeded(seed + number):
                x, y = pair_of(next(batches))
            yield x.to(self.device), y.to(self.device)


def is_of_torch(found: Any) -> bool:
    """Whether an object is a pair, of torch Datasets or DataLoaders, as opposed to a data set of ours."""
    return isinstance(found, tuple | list) and len(found) == 2


def dataset_of_torch(name: str, source: str, found: Sequence[Any], log: Log) -> DataSet:
    """Return (train, test), Datasets or DataLoaders of torch, as a data set."""
    train, test = (_samples(each, name, log) for each in found)
    size = _batch_size(found[0], name) if isinstance(found[0], DataLoader) else None
    classes = max(_named_classes(found[0]), train.labels[1] + 1, test.labels[1] + 1)
    return DataSet(name, source, classes, train.input_shape, train, test, batch=size)


def _batch_size(loader: "DataLoader[Any]", name: str) -> int:
    if loader.batch_size is None:
        raise InputError(
            f"data set {name!r}: its DataLoader has no batch_size, expected batches of one size: return Datasets"
        )
    return loader.batch_size


def _samples(found: Any, name: str, log: Log) -> TorchSamples | LoadedBatches:
    dataset = found.dataset if isinstance(found, DataLoader) else found
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        kind = type(dataset).__name__
        raise InputError(
            f"data set {name!r}: {kind} has no samples by number: return a Dataset with __len__ and __getitem__"
        )
    if not len(dataset):
        raise InputError(f"data set {name!r}: a {type(dataset).__name__} is empty: return samples to train and test on")
    collate = found.collate_fn if isinstance(found, DataLoader) else default_collate
    labels = _labels(dataset, collate, name, log)
    return LoadedBatches(found, labels) if isinstance(found, DataLoader) else TorchSamples(dataset, labels)


def _labels(dataset: Any, collate: Callable[[list[Any]], Any], name: str, log: Log) -> tuple[int, int]:
    """Return the lowest and the highest class: of an attribute `targets` or `labels`, else of all samples."""
    known = next((getattr(dataset, each) for each in ("targets", "labels") if hasattr(dataset, each)), None)
    if known is None:
        log(f"{name}: all {len(dataset)} samples are read for their classes: an attribute `targets` saves that")
        known = torch.stack([pair_of(collate([dataset[index]]))[1].max() for index in range(len(dataset))])
    values = _classes(known)
    return int(values.min()), int(values.max())


def _named_classes(found: Any) -> int:
    dataset = found.dataset if isinstance(found, DataLoader) else found
    names = getattr(dataset, "classes", ())
    return len(names) if isinstance(names, Sequence) else 0
