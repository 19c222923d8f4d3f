"""Statistics of timings: intervals that cover, differences that are seen, and few false alarms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.pipeline.bench.timing_statistics import (
    Estimate,
    differs,
    median_estimate,
    percentile,
    ratio_estimate,
    too_noisy,
)

times = st.floats(1e-6, 10)
openings = st.lists(st.lists(times, min_size=1, max_size=6), min_size=1, max_size=5)


def noisy(
    seed: int, slowdown: float = 1.0, count: int = 5, rounds: int = 20
) -> tuple[list[list[float]], list[list[float]]]:
    """Two candidates on a machine that drifts, has bursts, and gives each opening a luck of its own."""
    rng = np.random.default_rng(seed)
    pairs: tuple[list[list[float]], list[list[float]]] = ([], [])
    for _ in range(count):
        drift = np.exp(np.cumsum(rng.normal(0, 0.05, rounds)))
        for own, factor in zip(pairs, (slowdown, 1.0), strict=True):
            luck = math.exp(rng.normal(0, 0.01))
            burst = np.where(rng.random(rounds) < 0.1, rng.uniform(1, 10, rounds), 1)
            own.append(list(1e-3 * factor * luck * drift * burst * np.exp(rng.normal(0, 0.03, rounds))))
    return pairs


@given(openings)
def test_the_median_lies_in_its_interval(samples: list[list[float]]) -> None:
    found = median_estimate(samples)
    every = [value for opening in samples for value in opening]
    assert min(every) <= found.low <= found.high <= max(every)
    assert found.value == pytest.approx(float(np.median(every)))


@given(openings)
def test_percentiles_grow(samples: list[list[float]]) -> None:
    assert percentile(samples, 0.1) <= percentile(samples, 0.5) <= percentile(samples, 0.99)


@given(openings, st.floats(0.1, 10))
def test_a_constant_factor_is_found(samples: list[list[float]], factor: float) -> None:
    found = ratio_estimate([[factor * value for value in opening] for opening in samples], samples)
    assert found.value == pytest.approx(factor)
    assert found.low <= found.value * (1 + 1e-9)
    assert found.high >= found.value * (1 - 1e-9)


def test_the_ratio_turns_round() -> None:
    one, other = noisy(0, 1.5)
    there, back = ratio_estimate(one, other), ratio_estimate(other, one)
    assert there.value == pytest.approx(1 / back.value)
    assert (there.low, there.high) == (pytest.approx(1 / back.high), pytest.approx(1 / back.low))


def test_what_is_the_same_is_rarely_called_different() -> None:
    alarms = sum(differs(ratio_estimate(*noisy(seed))) for seed in range(400))
    assert alarms <= 0.05 * 400


def test_what_is_different_is_seen() -> None:
    seen = sum(differs(ratio_estimate(*noisy(seed, 1.1))) for seed in range(100))
    assert seen >= 95


def test_the_interval_covers_the_truth() -> None:
    found = [ratio_estimate(*noisy(seed, 1.3)) for seed in range(200)]
    assert sum(each.low <= 1.3 <= each.high for each in found) >= 0.9 * 200


def test_one_opening_with_one_round_says_nothing() -> None:
    found = ratio_estimate([[2.0]], [[1.0]])
    assert found.value == 2.0
    assert not differs(found)
    assert too_noisy(found)


def test_spread() -> None:
    assert Estimate(2.0, 1.0, 3.0).spread == 0.5
