"""A data set, a recipe and a command line small enough for tests: everything here takes a fraction of a second."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.idx_format import write_idx
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.recipe import Recipe, parse_recipe
from rigl_compress.pipeline.train.progress import Progress, ignore_progress
from rigl_compress.pipeline.train.stage import RunEnvironment, build_job, model_spec, train
from rigl_compress.pipeline.train.training_loop import Job
from rigl_compress.pipeline.workspace import Run

TRAIN, TEST = 300, 100
BATCH, EPOCHS = 20, 4
STEPS_PER_EPOCH = TRAIN // BATCH

RECIPE = f"""
name = "tiny"

[model]
name = "mlp"
options = {{ hidden = [24, 16] }}

[learning_rate]
peak = 0.1

[train]
epochs = {EPOCHS}
batch = {BATCH}

[sparsity]
method = "rigl"
sparsity = 0.8
interval = 4
"""


def recipe(*overrides: str) -> Recipe:
    """The tiny recipe with some values changed, as by --set."""
    return parse_recipe(RECIPE, "tiny.toml", overrides)


def job_of(data: DataSet, *overrides: str) -> Job:
    """The tiny recipe ready for the training loop."""
    chosen = recipe(*overrides)
    return build_job(chosen, model_spec(chosen, data), data, torch.device("cpu"), ignore_progress)


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images [count, 28, 28] and labels: the class is the place of a bright block in the noise."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 90, (count, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count, dtype=torch.uint8) % 10
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 4 + 12 * (label // 5), 2 + 5 * (label % 5)
        image[top : top + 6, left : left + 4] += 160
    return images, labels


def write_mnist(folder: Path, train: int = TRAIN, test: int = TEST) -> Path:
    """Write the four idx files of a small data set that can be learnt."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (part, count) in enumerate({"train": train, "t10k": test}.items()):
        images, labels = digits(count, seed)
        write_idx(folder / f"{part}-images-idx3-ubyte", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte", labels)
    return folder


@dataclass(frozen=True)
class Trainer:
    """Trains tiny recipes in folders below `root`."""

    root: Path
    data_dir: Path

    def here(self, listener: Callable[[Progress], None] | None = None) -> RunEnvironment:
        """On the CPU, with the tiny data."""
        return RunEnvironment("cpu", self.data_dir, **({} if listener is None else {"listener": listener}))

    def __call__(self, *overrides: str, run: str = "run", **options: Any) -> Run:
        """Train; `options` go to `train`."""
        listener = options.pop("listener", None)
        train(recipe(*overrides), self.root / run, self.here(listener), **options)
        return Run.open(self.root / run)

    def refused(self, *overrides: str) -> str:
        """The one line with which a recipe is refused; nothing is written."""
        with untouched(self.root), pytest.raises(InputError) as caught:
            self(*overrides, run="new")
        assert not (self.root / "new").exists()
        message = str(caught.value)
        assert len(message.splitlines()) == 1
        return message


class StoppedError(Exception):
    """Raised by a listener in the middle of an epoch, in the place of a kill."""


def stop_at(iteration: int) -> Callable[[Progress], None]:
    """A listener that stops the run at an iteration (counted over all epochs)."""

    def listen(now: Progress) -> None:
        if now.iteration == iteration:
            raise StoppedError

    return listen


def metrics_of(run: Run) -> list[dict[str, Any]]:
    """The metrics without what differs from run to run: the time."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in run.metrics()]


def assert_same_tensors(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """Bit by bit."""
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_same_model(one: SparseModel, other: SparseModel) -> None:
    """The same network, weights, topology and step."""
    assert (one.spec, one.step, dict(one.metrics)) == (other.spec, other.step, dict(other.metrics))
    assert_same_tensors(one.weights, other.weights)
    assert one.topology == other.topology


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content: to see that nothing was overwritten."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """Nothing below the folder is added, changed or removed by the block."""
    before = snapshot(folder)
    yield
    after = snapshot(folder)
    assert list(after) == list(before)
    assert all(after[name] == before[name] for name in before)


@dataclass(frozen=True)
class Spoken:
    """What a command gave: exit code, stdout, stderr."""

    code: int
    out: str
    err: str = field(repr=True)


Cli = Callable[..., Spoken]
