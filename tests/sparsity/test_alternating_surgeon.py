"""Pruning of one layer by alternating: exact counts, near the best of all masks, never far behind `surgeon`."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rigl_compress.sparsity.alternating_surgeon import alternating_surgeon
from rigl_compress.sparsity.second_order import Moments, surgeon


def layer(rows: int, columns: int, seed: int) -> tuple[Tensor, Moments]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(columns // 3 + 1, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(400, len(mixing), generator=generator, dtype=torch.float64) @ mixing
    x += 0.3 * torch.randn(400, columns, generator=generator, dtype=torch.float64)
    weight = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    return weight, Moments(x.T @ x, x.T @ x @ weight.T)


def error(found: Tensor, weight: Tensor, moments: Moments) -> float:
    lost = found - weight
    return float(((lost @ moments.gram) * lost).sum())


@given(rows=st.integers(1, 6), columns=st.integers(2, 12), share=st.floats(0, 1), seed=st.integers(0, 5))
def test_counts_are_exact_and_the_rest_is_zero(rows: int, columns: int, share: float, seed: int) -> None:
    weight, moments = layer(rows, columns, seed)
    count = round(share * weight.numel())
    found, mask = alternating_surgeon(weight, moments, count)
    assert int(mask.sum()) == count
    assert bool((found[~mask] == 0).all())
    assert bool(torch.isfinite(found).all())


def test_near_the_best_of_all_masks() -> None:
    ratios = []
    for seed in range(12):
        weight, moments = layer(1, 9, seed)
        tried = (_solved(weight, moments, list(kept)) for kept in combinations(range(9), 4))
        best = min(error(each, weight, moments) for each in tried)
        ratios.append(error(alternating_surgeon(weight, moments, 4)[0], weight, moments) / best)
    assert min(ratios) > 0.999
    assert sorted(ratios)[6] < 1.1
    assert sum(ratios) / len(ratios) < 1.6


def _solved(weight: Tensor, moments: Moments, kept: list[int]) -> Tensor:
    found = torch.zeros_like(weight)
    found[0, kept] = torch.linalg.solve(moments.gram[kept][:, kept], moments.cross[kept, 0])
    return found


@pytest.mark.parametrize("share", [0.5, 0.3, 0.15])
def test_better_than_one_pass_over_the_columns(share: float) -> None:
    weight, moments = layer(32, 96, 0)
    count = round(share * weight.numel())
    alternating, one_pass = (each(weight, moments, count)[0] for each in (alternating_surgeon, surgeon))
    assert error(alternating, weight, moments) < 0.9 * error(one_pass, weight, moments)
