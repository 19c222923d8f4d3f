"""A test that passed passes again: what is random begins at the same place in each of them."""

import random

import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def drawn_by_a_fixture() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("time", [1, 2])
def test_every_test_draws_the_same_numbers(time: int) -> None:
    first = random.random(), float(np.random.rand()), float(torch.rand(()))
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert first == (random.random(), float(np.random.rand()), float(torch.rand(())))


def test_so_do_fixtures_that_several_share(drawn_by_a_fixture: tuple[float, ...]) -> None:
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert drawn_by_a_fixture == (random.random(), float(np.random.rand()), float(torch.rand(())))
