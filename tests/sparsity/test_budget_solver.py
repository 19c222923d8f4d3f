"""The choice of densities against trying everything."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.sparsity.budget_solver import BINS, Candidate, choose

COSTS = st.floats(0.1, 100)
LAYERS = st.lists(
    st.lists(st.builds(Candidate, st.floats(0.01, 1), COSTS, st.floats(0, 10)), min_size=1, max_size=4),
    min_size=1,
    max_size=4,
)


@given(layers=LAYERS, share=st.floats(0, 1.2))
def test_as_good_as_trying_everything_with_a_little_less(layers: list[list[Candidate]], share: float) -> None:
    candidates = {str(number): each for number, each in enumerate(layers)}
    least, most = (sum(bound(one.cost for one in each) for each in layers) for bound in (min, max))
    budget = least + share * (most - least)
    found = choose(candidates, budget)
    every = [sum(one.cost for one in each) for each in product(*layers)]
    assert found.met == (min(every) <= budget * (1 + 1e-12))
    if not found.met:
        assert found.cost == pytest.approx(min(every))
        return
    assert found.cost <= budget * (1 + 1e-9)
    slack = len(layers) * (budget - least) / BINS
    errors = [
        sum(one.error for one in each) for each in product(*layers) if sum(o.cost for o in each) <= budget - slack
    ]
    assert not errors or found.error <= min(errors) + 1e-9


def test_sensitive_layers_keep_more() -> None:
    def layer(sensitivity: float) -> list[Candidate]:
        return [Candidate(d / 10, d, sensitivity * (1 - d / 10) ** 2) for d in range(1, 11)]

    found = choose({"tough": layer(1), "delicate": layer(9)}, 10).densities
    assert found["delicate"] > found["tough"]
    assert sum(found.values()) <= 1.0 + 1e-9
