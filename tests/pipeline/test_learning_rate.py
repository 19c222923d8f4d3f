"""The learning rate as a function of the step."""

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.learning_rate import LearningRate


def built(unit: str, longest: float, falling: bool) -> st.SearchStrategy[LearningRate]:
    """Schedules with anchors up to `longest`: falling ones, or those with drops."""
    return st.builds(
        LearningRate,
        peak=st.floats(1e-4, 10),
        shape=st.sampled_from(["cosine", "linear"]) if falling else st.just("drops"),
        drops=st.lists(st.floats(0, longest), max_size=0 if falling else 3).map(tuple),
        drop_factor=st.floats(1, 10),
        hold=st.floats(0, 0.75 * longest),
        warmup=st.floats(0, 0.25 * longest),
        floor=st.floats(0, 1),
        unit=st.just(unit),
    )


schedules = st.one_of(
    *(built(unit, 1 if unit == "share" else 20, falling) for unit in ("epochs", "steps", "share") for falling in (0, 1))
)


def test_the_authors_schedule() -> None:
    rate = LearningRate(peak=0.2, drops=(75, 95), drop_factor=3).per_step(600, 200)
    steps = (0, 44_999, 45_000, 56_999, 57_000, 119_999)
    assert [rate(step) for step in steps] == pytest.approx([0.2, 0.2, 0.2 / 3, 0.2 / 3, 0.2 / 9, 0.2 / 9])


def test_anchors_can_be_steps() -> None:
    schedule = LearningRate(peak=1.0, drops=(20, 30), warmup=10, unit="steps")
    assert [schedule.per_step(7, 10)(step) for step in (4, 9, 10, 19, 20, 30)] == pytest.approx(
        [0.5, 1, 1, 1, 0.1, 0.01]
    )
    assert [schedule.per_step(7, 20, 2)(step) for step in (9, 19, 39, 40, 60)] == pytest.approx([0.5, 1, 1, 0.1, 0.01])


def test_anchors_can_be_shares_of_the_run() -> None:
    schedule = LearningRate(peak=1.0, drops=(0.5, 0.75), warmup=0.1, unit="share")
    for steps, epochs, multiplier in ((10, 10, 1.0), (7, 100, 1.0), (10, 30, 3.0)):
        rate, total = schedule.per_step(steps, epochs, multiplier), steps * epochs
        assert [rate(int(share * total)) for share in (0.2, 0.49, 0.5, 0.76)] == pytest.approx([1, 1, 0.1, 0.01])
        assert rate(total // 20) == pytest.approx(0.5, abs=0.11)


@pytest.mark.parametrize("anchors", [{"drops": (0.5, 30)}, {"warmup": 5}, {"hold": -0.1, "shape": "linear"}])
def test_a_share_is_a_share(anchors: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not a share between 0 and 1"):
        LearningRate(unit="share", **anchors)


def test_drops_of_a_shape_that_has_none() -> None:
    with pytest.raises(InputError, match=r"drops is given, but learning_rate\.shape is 'linear'"):
        LearningRate(shape="linear", drops=(3,))


def test_linear_from_the_peak_to_nothing() -> None:
    rate = LearningRate(peak=2.0, shape="linear").per_step(10, 10)
    assert [rate(step) for step in (0, 25, 50, 99, 100, 101)] == pytest.approx([2, 1.5, 1, 0.02, 0, 0])


def test_cosine_from_the_peak_to_the_floor() -> None:
    rate = LearningRate(peak=2.0, shape="cosine", floor=0.1).per_step(10, 10)
    assert [rate(step) for step in (0, 50, 100, 200)] == pytest.approx([2, 1.1, 0.2, 0.2])
    assert rate(25) > 1.5


def test_warmup_rises_in_a_line_and_ends_at_the_peak() -> None:
    rate = LearningRate(peak=1.0, warmup=2).per_step(5, 10)
    assert [rate(step) for step in range(12)] == pytest.approx([0.1 * n for n in range(1, 11)] + [1.0, 1.0])


def test_the_fall_begins_after_the_warmup() -> None:
    rate = LearningRate(peak=1.0, shape="linear", warmup=5).per_step(10, 10)
    assert [rate(step) for step in (49, 50, 75, 100)] == pytest.approx([1, 1, 0.5, 0])


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_peak_can_be_held(shape: Literal["linear", "cosine"]) -> None:
    rate = LearningRate(peak=1.0, shape=shape, hold=6).per_step(10, 10)
    assert [rate(step) for step in (0, 60, 80, 100)] == pytest.approx([1, 1, 0.5, 0])


@given(schedules, st.integers(0, 300))
def test_never_negative_and_never_above_the_peak(schedule: LearningRate, step: int) -> None:
    assert 0 <= schedule.per_step(10, 20)(step) <= schedule.peak * (1 + 1e-9)


@given(schedules, st.sampled_from([2, 5, 10]), st.integers(0, 199))
def test_longer_training_is_the_same_curve_stretched(schedule: LearningRate, longer: int, step: int) -> None:
    """M× training scales all anchors. (Within the warm-up a step is a rise, so the curve is not the same there.)"""
    short, long = schedule.per_step(10, 20), schedule.per_step(10, 20 * longer, longer)
    if step >= schedule.warmup * short.steps_per_anchor:
        assert long(step * longer) == pytest.approx(short(step))


@pytest.mark.parametrize("wrong", [{"peak": 0.0}, {"peak": -1.0}, {"drop_factor": 0.0}, {"peak": float("nan")}])
def test_wrong_values_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=rf"learning_rate: .*{next(iter(wrong.values()))}.*expected above 0"):
        LearningRate(**wrong)  # type: ignore[arg-type]
