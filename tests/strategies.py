"""Hypothesis strategies that several tests share."""

import numpy as np
import torch
from hypothesis import strategies as st

dimensions = st.integers(min_value=1, max_value=12)
shapes = st.one_of(
    st.tuples(dimensions, dimensions),
    st.tuples(dimensions, dimensions, st.just(3), st.just(3)),
    st.tuples(dimensions, dimensions, st.just(1), st.just(1)),
)


def named(found: list[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {f"layer{index}": shape for index, shape in enumerate(found)}


networks = st.lists(shapes, min_size=1, max_size=6).map(named)
perceptrons = st.lists(st.tuples(dimensions, dimensions), min_size=1, max_size=6).map(named)
densities = st.floats(min_value=0.01, max_value=1.0)


@st.composite
def wired_layers(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """Mask, weight (zero where dead, no ties among the living), gradient, number of connections to replace."""
    size = draw(st.integers(min_value=2, max_value=60))
    active = draw(st.integers(min_value=1, max_value=size))
    replaced = draw(st.integers(min_value=0, max_value=active))
    rng = np.random.default_rng(draw(st.integers(min_value=0, max_value=2**31)))
    mask = np.zeros(size, dtype=bool)
    mask[rng.permutation(size)[:active]] = True
    weight = rng.permutation(np.arange(1, size + 1)) * rng.choice([-1, 1], size) * mask
    gradient = rng.permutation(np.arange(1, size + 1)) * rng.choice([-1, 1], size)
    return torch.tensor(mask), torch.tensor(weight).float(), torch.tensor(gradient).float(), replaced
