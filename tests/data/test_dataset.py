from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from rigl_compress.core.errors import InputError
from rigl_compress.data.dataset import DataSet, Split


def numbered(n: int) -> Split:
    """Sample i has the value i as input and i % 10 as its label."""
    return Split(torch.arange(n, dtype=torch.float32).reshape(n, 1), torch.arange(n) % 10)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def order(split: Split, size: int, seed: int) -> list[float]:
    return torch.cat([x for x, _ in split.batches(size, seeded(seed), drop_last=False)]).flatten().tolist()


@pytest.fixture
def dataset() -> DataSet:
    return DataSet("numbers", "made here", 10, (1,), numbered(20), numbered(5))


@settings(deadline=None)  # a shared machine stalls now and then
@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 9))
def test_an_epoch_has_each_sample_once(n: int, size: int, seed: int) -> None:
    assert sorted(order(numbered(n), size, seed)) == list(range(n))


@settings(deadline=None)  # a shared machine stalls now and then
@given(st.integers(1, 50), st.data())
def test_the_incomplete_batch_is_dropped(n: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, n))
    batches = [x for x, _ in numbered(n).batches(size, seeded(0))]
    assert [len(x) for x in batches] == [size] * (n // size)
    assert len(set(torch.cat(batches).flatten().tolist())) == size * (n // size)


def test_targets_stay_with_their_inputs() -> None:
    for x, y in numbered(30).batches(7, seeded(3)):
        assert (x[:, 0].long() % 10).tolist() == y.tolist()


def test_the_seed_decides_the_order_and_epochs_differ() -> None:
    split, generator = numbered(40), seeded(1)
    assert order(split, 8, 1) == order(split, 8, 1)
    assert order(split, 8, 1) != order(split, 8, 2)
    first, second = (torch.cat([x for x, _ in split.batches(8, generator)]) for _ in range(2))
    assert not torch.equal(first, second)


class Devices(TorchDispatchMode):
    """Notes the devices of the tensors that each index_select works on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.index_select.default:
            self.seen.append({arg.device.type for arg in args if isinstance(arg, torch.Tensor)})
        return func(*args, **(kwargs or {}))


def test_batches_are_taken_on_the_device_of_the_samples() -> None:
    with Devices() as devices:
        x, y = next(iter(numbered(4).to("meta").batches(2, seeded(0))))
    assert devices.seen == [{"meta"}, {"meta"}]
    assert (tuple(x.shape), tuple(y.shape)) == ((2, 1), (2,))


@pytest.mark.parametrize("size", [0, -1, 6])
def test_a_batch_size_that_gives_no_batch_is_an_error_at_once(size: int) -> None:
    with pytest.raises(InputError, match=f"batch size {size} does not fit: choose 1 to 5"):
        numbered(5).batches(size, seeded(0))


def test_hold_out_takes_the_last_training_samples(dataset: DataSet) -> None:
    held = dataset.hold_out(6)
    assert held.train.x.flatten().tolist() == list(range(14))
    assert held.test.x.flatten().tolist() == list(range(14, 20))
    assert held.test.y.tolist() == [4, 5, 6, 7, 8, 9]
    assert "last 6 training samples" in held.source
    assert len(dataset.test) == 5


def test_hold_out_of_nothing_leaves_no_test_samples(dataset: DataSet) -> None:
    assert (len(dataset.hold_out(0).train), len(dataset.hold_out(0).test)) == (20, 0)


@pytest.mark.parametrize("n", [-1, 20, 21])
def test_hold_out_of_too_many(dataset: DataSet, n: int) -> None:
    with pytest.raises(InputError, match=f"cannot hold out {n} of 20 training samples: choose 0 to 19"):
        dataset.hold_out(n)


def test_to_moves_both_splits() -> None:
    # The labels of a meta tensor cannot be looked at, so an empty set stands for the others.
    moved = DataSet("none", "", 10, (1,), numbered(0), numbered(0)).to("meta")
    assert {t.device.type for t in (moved.train.x, moved.train.y, moved.test.x, moved.test.y)} == {"meta"}


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (torch.zeros(3, 1), torch.zeros(2).long(), "3 inputs, 2 targets"),
        (torch.zeros(3, 1), torch.zeros(3), "int64: found torch.float32"),
    ],
)
def test_a_split_is_checked(x: torch.Tensor, y: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Split(x, y)


@pytest.mark.parametrize(
    ("classes", "shape", "words"),
    [(10, (2,), r"shape \(1,\), expected \(2,\)"), (5, (1,), "labels 0 to 9, expected 0 to 4")],
)
def test_a_data_set_is_checked(classes: int, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(InputError, match=words):
        DataSet("numbers", "", classes, shape, numbered(20), numbered(0))
