import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import wired_layers
from torch import Tensor

from rigl_compress.sparsity.rewire import mask_of, rewire

# Old mask, weights, gradients, k → new mask, worked out by hand from Algorithm 1 of the paper.
TABLE = [
    # the weakest active one goes, the strongest gradient outside comes
    ("1110", [3, 2, 1, 0], [0, 0, 0, 9], 1, "1101"),
    # the dropped one has the strongest gradient of all candidates: it comes back
    ("1110", [3, 2, 1, 0], [0, 0, 9, 5], 1, "1110"),
    # a strong gradient at a kept connection does not count
    ("1100", [3, 2, 0, 0], [9, 0, 1, 2], 1, "1001"),
    # an active weight of exactly zero ties with the dead ones and must not lose to them: it is kept when k is 0
    ("0110", [0, 0, 5, 0], [9, 0, 0, 9], 0, "0110"),
    # … and it is the one that goes when k is 1
    ("0110", [0, 0, 5, 0], [9, 1, 0, 8], 1, "1010"),
    # signs play no part
    ("1110", [-3, -2, 1, 0], [0, 0, 0, -9], 1, "1101"),
    # everything is replaced
    ("1100", [1, 2, 0, 0], [1, 2, 3, 4], 2, "0011"),
    # a fully dense layer stays what it is
    ("1111", [4, 3, 2, 1], [1, 1, 1, 1], 2, "1111"),
]


def rewired(mask: Tensor, drop: Tensor, grow: Tensor | None, keep: int, new: int) -> Tensor:
    """The function under test in terms of masks."""
    places = mask.reshape(-1).nonzero().squeeze(1)
    blocks = None if grow is None else [(0, grow.reshape(-1))]
    found = rewire(places, drop.reshape(-1)[places], blocks, keep, new)
    assert len(found) == len(set(found.tolist()))  # no place twice
    return mask_of(found, mask.shape)


def bits(text: str) -> Tensor:
    return torch.tensor([sign == "1" for sign in text])


@pytest.mark.parametrize(("mask", "weight", "gradient", "k", "expected"), TABLE)
def test_old_mask_to_new_mask(mask: str, weight: list[float], gradient: list[float], k: int, expected: str) -> None:
    old = bits(mask)
    new = rewired(old, torch.tensor(weight).float().abs(), torch.tensor(gradient).float().abs(), int(old.sum()) - k, k)
    assert new.tolist() == bits(expected).tolist()


def naive_rigl(mask: np.ndarray, weight: np.ndarray, gradient: np.ndarray, k: int) -> np.ndarray:
    """RigL in plain Python: sort the living by strength, drop the last k, then take the best k of the rest."""
    living = sorted(np.flatnonzero(mask), key=lambda i: -abs(weight[i]))
    kept = set(living[: len(living) - k])
    others = sorted((i for i in range(len(mask)) if i not in kept), key=lambda i: -abs(gradient[i]))
    new = np.zeros_like(mask)
    new[list(kept | set(others[:k]))] = True
    return new


@given(wired_layers())
def test_agrees_with_plain_python(layer: tuple[Tensor, Tensor, Tensor, int]) -> None:
    mask, weight, gradient, k = layer
    new = rewired(mask, weight.abs(), gradient.abs(), int(mask.sum()) - k, k)
    assert new.tolist() == naive_rigl(mask.numpy(), weight.numpy(), gradient.numpy(), k).tolist()


@given(wired_layers())
def test_count_is_conserved_and_the_strong_survive(layer: tuple[Tensor, Tensor, Tensor, int]) -> None:
    mask, weight, gradient, k = layer
    new = rewired(mask, weight.abs(), gradient.abs(), int(mask.sum()) - k, k)
    assert new.sum() == mask.sum()
    lost = mask & ~new
    if lost.any() and (mask & new).any():
        assert int(lost.sum()) <= k
        strongest_lost = weight[lost].abs().max()
        assert int((weight[mask].abs() < strongest_lost).sum()) < k


@given(wired_layers())
def test_without_growth_it_only_removes(layer: tuple[Tensor, Tensor, Tensor, int]) -> None:
    mask, weight, _, k = layer
    new = rewired(mask, weight.abs(), None, int(mask.sum()) - k, 0)
    assert not (new & ~mask).any()
    assert int(new.sum()) == int(mask.sum()) - k


def test_keeps_the_shape_of_a_kernel() -> None:
    mask = torch.zeros(4, 3, 3, 3, dtype=torch.bool)
    mask[0] = True
    score = torch.rand(4, 3, 3, 3)
    new = rewired(mask, score, score, 20, 7)
    assert new.shape == mask.shape
    assert int(new.sum()) == 27
