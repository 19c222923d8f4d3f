from math import cos, pi

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.schedules import DECAYS, UpdateSchedule, pruned_density

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
