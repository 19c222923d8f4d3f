"""Images on disk, read by worker processes during training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any, BinaryIO, Literal
from warnings import catch_warnings, filterwarnings

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rigl_compress.core.errors import InputError
from rigl_compress.data.download_sources import Log
from rigl_compress.data.image_batches import Normalise
from rigl_compress.data.image_decoding import DamagedImageError, decode
from rigl_compress.data.image_views import View
from rigl_compress.data.samples import Batches, check_batch_size
from rigl_compress.data.sharded_batches import Shard

SIDE = 224
NORMALISE = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of ImageNet's pixels, as all its recipes have it
Item = tuple[str, int, int | None]  # a path, its class, and the seed of its crop (None: the middle)
Opened = Callable[[str], str | BinaryIO]
Read = tuple[Tensor, Tensor, list[tuple[str, str]]]  # images, classes, and (path, reason) of what could not be read


@dataclass(frozen=True)
class Reading:
    """How images are read: the side of the squares, worker processes, what happens to damaged ones, what is seen."""

    side: int = SIDE
    workers: int = 0
    damaged: Literal["fatal", "skip"] = "fatal"
    normalise: Normalise = NORMALISE
    view: View = field(default_factory=View)

    def __post_init__(self) -> None:
        if self.side < 1 or self.workers < 0:
            raise InputError(f"data.options: side is {self.side} and workers {self.workers}, expected 1 and 0 or more")

    @property
    def facts(self) -> dict[str, Any]:
        """What a program must do with an image before the network sees it."""
        return {**self.normalise.facts, "side": self.side, "center": self.view.center}


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images on disk with their classes. Random crops are drawn here, not in the workers.

    `opened` turns what is used instead of a path into a path or an open file.
    """

    paths: Sequence[str]
    classes: Tensor  # int64 [N]
    reading: Reading
    log: Log
    device: torch.device | str = "cpu"
    opened: Opened = str

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What a program must do with an image before the network sees it."""
        return self.reading.facts

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Three colours of a square."""
        return (3, self.reading.side, self.reading.side)

    @property
    def labels(self) -> tuple[int, int]:
        """The lowest and the highest class."""
        return (int(self.classes.min()), int(self.classes.max())) if len(self) else (0, 0)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, part: slice) -> "ImageFiles":
        return replace(self, paths=self.paths[part], classes=self.classes[part])

    def to(self, device: torch.device | str) -> "ImageFiles":
        """Return the same images, for batches on another device."""
        return replace(self, device=device)

    def batches(self, size: int, generator: torch.Generator) -> Batches:
        """Yield one epoch of random crops in a new order."""
        return self.sharded(size, generator, Shard())

    def sharded(self, size: int, generator: torch.Generator, shard: Shard) -> Batches:
        """Yield a part of each batch of an epoch; images of other parts, and of batches left out, are not read."""
        check_batch_size(size, len(self))
        order = torch.randperm(len(self), generator=generator)[: len(self) - len(self) % size]
        seeds = torch.randint(2**62, (len(order),), generator=generator)
        return self._read(_Plan(self.paths, self.classes, order, seeds, size, shard))

    def in_order(self, size: int) -> Batches:
        """Yield the centre of each image, in order."""
        return self._read(_Plan(self.paths, self.classes, torch.arange(len(self)), None, size))

    def _read(self, plan: "_Plan") -> Batches:
        for images, classes, damaged in _started(
            loader(plan, self.reading, self.opened, pinned=_is_pinned(self.device))
        ):
            for path, reason in damaged:
                self._report(path, reason)
            if len(images):
                yield self.reading.normalise(images.to(self.device, non_blocking=True)), classes.to(self.device)

    def _report(self, path: str, reason: str) -> None:
        if self.reading.damaged == "fatal":
            raise unreadable(path, reason)
        self.log(f"{path} is left out: {reason}")


def unreadable(path: Path | str, reason: str) -> InputError:
    """Return the error for a damaged image.

    >>> print(unreadable("a.jpg", "the file is empty"))
    a.jpg cannot be read (the file is empty): replace it, remove it, or set data.options.damaged = "skip"
    """
    cure = 'replace it, remove it, or set data.options.damaged = "skip"'
    return InputError(f"{path} cannot be read ({reason}): {cure}")


@dataclass(frozen=True, eq=False)
class _Plan:
    """The images of each batch, as sent to the workers."""

    paths: Sequence[str]
    classes: Tensor
    order: Tensor
    seeds: Tensor | None
    size: int
    shard: Shard = Shard()  # noqa: RUF009 (frozen)

    def __len__(self) -> int:
        return -(-len(self.order) // self.size) - self.shard.skip

    def __iter__(self) -> Iterator[list[Item]]:
        for start in range(self.shard.skip * self.size, len(self.order), self.size):
            rows = self.shard.rows(min(self.size, len(self.order) - start))
            positions = slice(start + rows.start, start + rows.stop)
            part = self.order[positions]
            seeds = [None] * len(part) if self.seeds is None else self.seeds[positions].tolist()
            paths = [self.paths[index] for index in part.tolist()]
            yield list(zip(paths, self.classes[part].tolist(), seeds, strict=True))


@dataclass(frozen=True)
class _Decoder(Dataset[tuple[Tensor | None, int, str, str]]):
    """The work on an item; it has no list of files, so that it is quickly sent to a new process."""

    side: int
    view: View
    opened: Opened

    def __getitem__(self, item: Any) -> tuple[Tensor | None, int, str, str]:
        path, label, seed = item
        try:
            return decode(self.opened(path), self.side, seed, self.view), label, path, ""
        except DamagedImageError as error:
            return None, label, path, str(error)


def _collate(items: list[tuple[Tensor | None, int, str, str]]) -> Read:
    images = [image for image, *_ in items if image is not None]
    classes = torch.tensor([label for image, label, *_ in items if image is not None], dtype=torch.int64)
    damaged = [(path, reason) for image, _, path, reason in items if image is None]
    return torch.stack(images) if images else torch.empty(0), classes, damaged


def _is_pinned(device: torch.device | str) -> bool:
    """Whether batches for a device are put into pinned memory, from which they are copied while it computes.

    >>> _is_pinned("cpu"), _is_pinned("cuda:1")
    (False, True)
    """
    return torch.device(device).type in ("cuda", "xpu")


def loader(plan: _Plan, reading: Reading, opened: Opened = str, *, pinned: bool = False) -> "DataLoader[Any]":
    """Yield the batches of a plan, read ahead by workers; a single batch is read in this process."""
    workers = min(reading.workers, len(plan)) if len(plan) > 1 else 0
    with _no_warning():
        return DataLoader(
            _Decoder(reading.side, reading.view, opened),
            batch_sampler=plan,
            num_workers=workers,
            collate_fn=_collate,
            multiprocessing_context=_context() if workers else None,
            pin_memory=pinned,
        )


def _started(loading: "DataLoader[Any]") -> Iterator[Read]:
    with _no_warning():
        return iter(loading)


@contextmanager
def _no_warning() -> Iterator[None]:
    """Ignore the warning about more workers than cores: their number is the user's choice."""
    with catch_warnings():
        filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield


def _context() -> Any:
    """Return a context whose server has loaded this module, for fast forks; forking this process may hang."""
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
