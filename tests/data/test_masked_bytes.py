"""Bytes that are to be guessed."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.random_generators import generator
from rigl_compress.data.byte_sequences import sequences
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.data.masked_bytes import MASK, MaskedSequences
from rigl_compress.data.samples import IGNORED
from rigl_compress.pipeline.metrics import METRICS, evaluate, loss_of

LENGTH = 100


def text(share: float = 0.2) -> MaskedSequences:
    content = bytes(torch.randint(97, 123, (LENGTH * 40 + 1,), generator=torch.Generator().manual_seed(0)).tolist())
    return MaskedSequences(sequences([content], LENGTH), share)


def whole(samples: MaskedSequences) -> tuple[Tensor, Tensor]:
    x, y = zip(*samples.in_order(7), strict=True)
    return torch.cat(x), torch.cat(y)


def test_a_share_is_guessed_and_of_it_some_are_masked_replaced_and_left() -> None:
    samples = text()
    x, y = whole(samples)
    original = torch.cat([each for each, _ in samples.text.in_order(7)])
    guessed = y != IGNORED
    assert guessed.sum(1).eq(20).all()
    assert torch.equal(y[guessed], original[guessed])
    assert torch.equal(x[~guessed], original[~guessed])
    assert (x == MASK).sum(1).eq(16).all()
    assert not (x == MASK)[~guessed].any()
    seen = guessed & (x != MASK)
    assert (x[seen] != original[seen]).float().mean().item() == pytest.approx(0.5, abs=0.05)  # replaced, or left


def test_the_generator_decides_and_each_epoch_masks_other_bytes() -> None:
    def epoch(number: int) -> Tensor:
        return torch.cat([y for _, y in text().batches(8, generator(3, number, "order of the data"))])

    assert torch.equal(epoch(0), epoch(0))
    assert not torch.equal(epoch(0) == IGNORED, epoch(1) == IGNORED)


def test_evaluation_masks_the_same_bytes_in_batches_of_any_size() -> None:
    x, y = whole(text())
    assert len({tuple(row) for row in (y == IGNORED).tolist()}) == len(y)  # each sequence by itself
    for size in (1, 40):
        again = zip(*text().in_order(size), strict=True)
        assert all(torch.equal(torch.cat(one), other) for one, other in zip(again, (x, y), strict=True))
    assert torch.equal(whole(text()[10:20])[0], x[10:20])


def test_a_short_sequence_has_one_byte_to_guess() -> None:
    samples = MaskedSequences(sequences([b"abcdefg"], 3), 0.01)
    x, y = whole(samples)
    assert ((x == MASK).sum(1).tolist(), (y != IGNORED).sum(1).tolist()) == ([1, 1], [1, 1])


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_shares_that_make_no_sense(share: float) -> None:
    with pytest.raises(InputError, match=r"data\.options\.mask is .*, expected a share between 0 and 1"):
        text(share)


class Knows(nn.Module):
    """Is sure of the byte it sees, and knows nothing of a masked one."""

    def forward(self, x: Tensor) -> Tensor:
        """Score all tokens."""
        return torch.where((x == MASK)[..., None], 0.0, nn.functional.one_hot(x, MASK + 1) * 1e4)


def test_only_guesses_count() -> None:
    samples = MaskedSequences(sequences([bytes(LENGTH * 4 + 1)], LENGTH), 0.05)  # five of 100: four masked, one left
    measured = evaluate(METRICS["masked_bits"], Knows(), samples, 3)
    assert measured == pytest.approx(torch.tensor(257.0).log2().item() * 4 / 5)
    x, y = next(samples.in_order(4))
    assert loss_of(Knows()(x), y).item() / torch.tensor(2.0).log().item() == pytest.approx(measured)
    assert evaluate(METRICS["error"], Knows(), samples, 3) == 0.0  # the first of equal scores is byte 0


def test_it_is_a_data_set(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"to be or not to be " * 100)
    data = load_dataset("masked-text", tmp_path, options={"length": 20, "validation": 0.2, "mask": 0.3})
    assert (data.classes, data.input_shape, data.metric) == (MASK + 1, (20,), "masked_bits")
    assert isinstance(data.train, MaskedSequences)
    assert data.train.share == 0.3
    assert len(data.hold_out(5).test) == 5
