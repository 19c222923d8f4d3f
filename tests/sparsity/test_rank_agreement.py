"""Hashes of connections; tests with real processes are in test_replica_check.py."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.sparsity.rank_agreement import digest

positions = st.sets(st.integers(0, 2**40), min_size=1, max_size=20)


@given(one=positions, other=positions)
def test_different_connections_have_different_digests(one: set[int], other: set[int]) -> None:
    first, second = (int(digest(torch.tensor(sorted(each)))) for each in (one, other))
    assert (first == second) == (one == other)


def test_every_single_swap_is_seen() -> None:
    """A thousand masks that differ in one connection: sums of positions are often the same."""
    masks = [torch.tensor([a, b]) for a in range(40) for b in range(a + 1, 40)]
    assert len({int(digest(each)) for each in masks}) == len(masks)
