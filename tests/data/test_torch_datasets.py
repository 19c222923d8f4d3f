"""Datasets and DataLoaders of torch that a function returns in the place of a DataSet."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler, TensorDataset

from rigl_compress.core.errors import InputError
from rigl_compress.data.custom_datasets import CustomDataSet
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.torch_datasets import pair_of
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run


class Noisy(Dataset[Any]):
    """Blobs with noise from all three generators that people draw from."""

    def __init__(self, count: int, with_targets: bool = True) -> None:
        self.y = torch.arange(count) % 4
        if with_targets:
            self.targets = self.y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.rand(4) + random.random() + float(np.random.rand())
        return torch.eye(4)[self.y[index]] + 0.1 * noise, int(self.y[index])


class Tokens(Dataset[Any]):
    """Dicts, as Hugging Face's tools have them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.arange(5) + index, "attention_mask": torch.ones(5).long(), "labels": index % 2}


def load(make: Callable[[], Any], log: Any = None) -> DataSet:
    return CustomDataSet("mine", make).load(None, log or (lambda _: None), {})


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def epoch(data: DataSet, seed: int = 0) -> tuple[Tensor, Tensor]:
    xs, ys = zip(*data.train.batches(4, seeded(seed)), strict=True)
    return torch.cat(xs), torch.cat(ys)


def loaders(**options: Any) -> tuple[Any, Any]:
    return DataLoader(Noisy(24), 4, shuffle=True, **options), DataLoader(Noisy(10), 3)


MAKERS = {
    "datasets": lambda: (Noisy(24), Noisy(10)),
    "loaders": loaders,
    "loaders with a generator": lambda: loaders(generator=seeded(5)),
}
MAKER = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@MAKER
def test_a_pair_is_a_data_set(make: Any) -> None:
    data = load(make)
    assert (data.classes, data.input_shape, len(data.train), len(data.test)) == (4, (4,), 24, 10)
    assert sum(len(y) for _, y in data.test.in_order(4)) == 10
    x, y = epoch(data)
    assert y.bincount().tolist() == [6] * 4
    assert y.tolist() != sorted(y.tolist())
    assert torch.equal(x.argmax(dim=1), y)


@MAKER
def test_order_and_noise_follow_from_the_seed_alone(make: Any) -> None:
    data, again = load(make), load(make)
    torch.manual_seed(1)
    first = epoch(data)
    torch.manual_seed(2)
    random.seed(2)
    epoch(again, seed=7)  # an epoch before, as in a run that is not resumed
    for one, other in zip(first, epoch(again), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(first[0], epoch(data, seed=1)[0])


@MAKER
def test_the_random_numbers_of_training_are_not_touched(make: Any) -> None:
    data = load(make)
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    epoch(data)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_the_batches_of_a_loader_are_its_own() -> None:
    data = load(lambda: (DataLoader(Noisy(26), 8), DataLoader(Noisy(10), 3)))
    assert data.batch == 8
    assert [len(y) for _, y in data.train.batches(4, seeded(0))] == [8, 8, 8], "the rest of an epoch is dropped"
    assert [len(y) for _, y in data.test.in_order(100)] == [3, 3, 3, 1]


def test_dicts_of_tokens() -> None:
    data = load(lambda: (Tokens(), Tokens()))
    assert (data.classes, data.input_shape) == (2, (2, 5))
    x, y = next(data.test.in_order(2))
    assert (x[1, 0].tolist(), x[1, 1].tolist(), y.tolist()) == ([1, 2, 3, 4, 5], [1, 1, 1, 1, 1], [0, 1])


def test_without_targets_all_samples_are_read_and_that_is_said() -> None:
    said: list[str] = []
    assert load(lambda: (Noisy(8, with_targets=False), Noisy(4)), said.append).classes == 4
    assert said == ["mine: all 8 samples are read for their classes: an attribute `targets` saves that"]


def test_held_out_samples() -> None:
    data = load(loaders).hold_out(4)
    assert (len(data.train), len(data.test), data.batch) == (20, 4, None)


def scored(values: list[float]) -> Any:
    return TensorDataset(torch.zeros(len(values), 3), torch.tensor(values))


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: (Endless(), Endless()), "Endless has no samples by number: return a Dataset with __len__"),
        (lambda: (3, 4), "int has no samples by number"),
        (lambda: (Noisy(0), Noisy(4)), "a Noisy is empty"),
        (lambda: (DataLoader(Noisy(8), batch_size=None), Noisy(4)), "has no batch_size, expected batches of one size"),
        (
            lambda: (scored([0.0, 0.5]), scored([0.0, 1.0])),
            "targets of your data are numbers such as 0.5, expected classes",
        ),
        (lambda: (1, 2, 3), "expected a rigl_compress.DataSet, or a pair of torch Datasets or DataLoaders"),
    ],
)
def test_bad_input(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(make)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((1, 2, 3), r"has 3 values, expected \(inputs, targets\)"),
        (torch.zeros(3), r"has a Tensor, expected \(inputs, targets\)"),
        ({"ids": torch.zeros(1), "labels": [1]}, "has ids, labels, expected inputs as input_ids or"),
        ((torch.zeros(2), [1.0, 2.25]), "numbers such as 2.25, expected classes"),
        ({"input_ids": [[1]], "labels": [float("nan")]}, "numbers such as nan, expected classes"),
        ({"input_ids": torch.zeros(1)}, "expected targets as labels or label"),
        ({"input_ids": [[1]], "token_type_ids": [[1]], "labels": [1]}, "token_type_ids without an attention_mask"),
    ],
)
def test_batches_that_are_not_it(batch: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        pair_of(batch)


def test_whole_numbers_of_any_type_are_classes() -> None:
    assert pair_of((torch.zeros(2), torch.tensor([1.0, 2.0])))[1].tolist() == [1, 2]


def test_samples_of_several_shapes() -> None:
    samples = [(torch.zeros(length), 1) for length in (12, 13)]
    data = load(lambda: (samples, samples))
    with pytest.raises(InputError, match=r"do not make a batch: .*\[12\] at entry 0 and \[13\] at entry 1; give all"):
        list(data.train.in_order(2))


def test_samples_of_an_own_sampler_cannot_be_held_out() -> None:
    sampler = SubsetRandomSampler(range(12))
    data = load(lambda: (DataLoader(Noisy(24), 4, sampler=sampler), DataLoader(Noisy(8), 4)))
    assert len(data.train) == 12
    with pytest.raises(InputError, match="has no last samples to hold out"):
        data.hold_out(2)


def test_a_run_takes_the_batches_of_the_loader_and_is_resumed_to_the_bit(tmp_path: Path, registries: None) -> None:
    from rigl_compress.data.dataset_registry import register_dataset

    register_dataset("noisy")(lambda: (DataLoader(Noisy(24), 6, shuffle=True), DataLoader(Noisy(8), 4)))
    said: list[str] = []
    options = "model.options={in_features=4, out_features=4}"
    recipe = tiny.recipe("data.name=noisy", "train.epochs=3", "model.name=torch.nn:Linear", options)
    environment = RunEnvironment("cpu", log=said.append)
    whole = train(recipe, tmp_path / "whole", environment)
    assert "train.batch = 20 is not used: batches are those of the DataLoader, of 6 samples" in said
    assert Run.open(tmp_path / "whole").recipe().train.batch == 6

    class StoppedError(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.epoch == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "parts", RunEnvironment("cpu", listener=stop))
    resumed = train(Run.open(tmp_path / "parts").recipe(), tmp_path / "parts", environment, resume=True)
    assert all(torch.equal(whole.weights[name], weight) for name, weight in resumed.weights.items())
