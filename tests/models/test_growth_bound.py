"""The bound from which candidates for growth are searched: it loses none of the best."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rigl_compress.models.training_kernels import growth_bound, growth_candidates, training_library

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2000), st.integers(0, 100), st.floats(0, 1), st.integers(0, 2**31 - 1), st.booleans())
def test_the_best_exceed_the_bound(size: int, wanted: int, share: float, seed: int, ties: bool) -> None:
    random = torch.Generator().manual_seed(seed)
    gradient = torch.randn(size, generator=random)
    gradient = gradient.round() if ties else gradient
    start = 37
    kept = (torch.rand(size, generator=random) < share).nonzero().squeeze(1) + start
    free = torch.ones(size, dtype=torch.bool).index_fill_(0, kept - start, False)
    bound = growth_bound(gradient, start, kept, wanted)
    magnitudes = gradient.abs()[free]
    if bound >= 0:
        assert int((magnitudes > bound).sum()) >= wanted
    found = growth_candidates(gradient, start, kept, bound)
    count = min(wanted, len(magnitudes))
    assert torch.equal(found.magnitudes.topk(count).values, magnitudes.topk(count).values)


def test_the_bound_spares_most_of_a_block() -> None:
    gradient = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    found = growth_candidates(gradient, 0, torch.arange(0), growth_bound(gradient, 0, torch.arange(0), 300))
    assert 300 <= len(found.positions) < 600


@pytest.mark.parametrize("value", [0.0, torch.nan, torch.inf])
def test_gradients_without_information_have_no_bound(value: float) -> None:
    assert growth_bound(torch.full((320,), value), 0, torch.arange(0), 5) == -1
