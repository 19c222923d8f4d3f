from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.schedules import DECAYS, UpdateSchedule, pruned_density
from rigl_compress.sparsity.sparsity_config import SparsityConfig

# (begin, end, interval) → for each iteration: 1 an optimizer step, 0 an update in its place. From the unit tests of the
# authors' code.
VECTORS = [
    ((3, 7, 2), "11101101101"),
    ((1, 5, 3), "10111011111"),
    ((0, 4, 1), "01010101011"),
]


@pytest.mark.parametrize(("facts", "expected"), VECTORS)
def test_updates_take_the_place_of_steps_as_in_the_authors_code(facts: tuple[int, int, int], expected: str) -> None:
    begin, end, interval = facts
    schedule = UpdateSchedule(interval=interval, begin=begin, end=end)
    step, updated_at, found = 0, -1, ""
    for _ in expected:
        if schedule.due(step) and updated_at != step:
            updated_at, found = step, found + "0"
        else:
            step, found = step + 1, found + "1"
    assert found == expected


def test_the_papers_cosine() -> None:
    schedule = UpdateSchedule(interval=100, end=25_000, fraction=0.3)
    for step in range(0, 25_001, 100):
        assert schedule.at(step) == pytest.approx(0.3 / 2 * (1 + cos(step * pi / 25_000)))


def test_mnist_makes_501_updates() -> None:
    schedule = UpdateSchedule(interval=100, end=50_000)
    assert schedule.updates == sum(schedule.due(step) for step in range(120_000)) == 501


def test_inverse_power_of_one_is_linear() -> None:
    schedule = UpdateSchedule(end=1000, fraction=0.5, decay="inverse-power", power=1)
    assert schedule.at(250) == pytest.approx(0.5 * 0.75)


@given(
    st.sampled_from(list(DECAYS)),
    st.integers(0, 50),
    st.integers(1, 300),
    st.floats(0, 1),
    st.floats(0.5, 4),
    st.integers(0, 400),
)
def test_every_decay_is_a_share_and_ends(
    decay: str, begin: int, span: int, fraction: float, power: float, step: int
) -> None:
    schedule = UpdateSchedule(7, begin + span, fraction, decay, power, begin)
    assert 0 <= schedule.at(step) <= fraction
    assert schedule.at(begin) == pytest.approx(fraction)
    assert schedule.at(begin + span + 1 + step) == 0
    assert not schedule.due(begin + span + 1 + step)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval"),
        ({"fraction": 1.5}, "fraction"),
        ({"begin": 10, "end": 5}, "begin"),
        ({"decay": "cosin"}, "cosine"),
    ],
)
def test_bad_settings(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        UpdateSchedule(**settings)  # type: ignore[arg-type]


def test_gradual_pruning_follows_the_cubic_curve() -> None:
    sparsities = [1 - pruned_density(passed, 0.1) for passed in (0, 0.25, 0.5, 0.75, 1)]
    assert sparsities == pytest.approx([0.9 * (1 - (1 - passed) ** 3) for passed in (0, 0.25, 0.5, 0.75, 1)])


def test_the_first_update_as_a_share_of_the_run() -> None:
    """Gradual pruning from a trained network: it trains on for a while, then goes from dense to the end."""
    config = SparsityConfig("pruning", begin_share=0.1, end_share=0.6, interval=10)
    schedule = config.schedule(1000)
    assert (schedule.begin, schedule.end) == (100, 600)
    assert [schedule.passed(step) for step in (0, 100, 350, 600, 999)] == [0, 0, 0.5, 1, 1]
    assert SparsityConfig(begin_share=0.9, end_share=0.5).schedule(1000).end == 900
    for wrong in ({"begin_share": 1.5}, {"begin_share": -0.1}, {"begin_share": 0.1, "begin": 5}):
        with pytest.raises(InputError, match=r"begin_share is .* expected one of them"):
            SparsityConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a share of a run of unknown length: set total_steps"):
        SparsityConfig(begin_share=0.1, end=50).schedule(None)
