"""Timing in turns."""

from collections.abc import Callable
from time import sleep

import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.bench.timing import TimingPlan, measure

PLAN = TimingPlan(openings=3, rounds=4, warmup=2, sample=0.0)


class Counted:
    """A candidate that notes what happens to it in a list it shares with others."""

    def __init__(self, name: str, log: list[str], fail_at: int = -1) -> None:
        self.name, self.log, self.fail_at, self.calls = name, log, fail_at, 0

    def open(self) -> Callable[[], None]:
        self.log.append(f"open {self.name}")
        return self.run

    def run(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError(f"{self.name}\ngave up")
        self.log.append(self.name)


def test_candidates_take_turns() -> None:
    log: list[str] = []
    candidates = {name: Counted(name, log) for name in "abc"}
    timings = measure({name: each.open for name, each in candidates.items()}, PLAN)
    assert {name: [len(each) for each in timings.samples[name]] for name in "abc"} == {
        name: [4, 4, 4] for name in "abc"
    }
    assert [entry for entry in log if entry.startswith("open")] != ["open a", "open b", "open c"] * 3
    timed = [entry for entry in log if not entry.startswith("open")]
    warm = 3 * (2 + 1)  # of each opening: the warm-up, and a run that tells how long one is
    for opening in range(3):
        rounds = timed[opening * (warm + 12) + warm : (opening + 1) * (warm + 12)]
        assert all(sorted(rounds[place : place + 3]) == ["a", "b", "c"] for place in range(0, 12, 3))


def test_the_order_depends_on_the_seed_alone() -> None:
    def order(seed: int) -> list[str]:
        log: list[str] = []
        measure({name: Counted(name, log).open for name in "abcd"}, TimingPlan(openings=1, rounds=5, seed=seed))
        return [entry for entry in log if entry.startswith("open")]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("fail_at", [1, 4, 9])
def test_one_that_fails_is_left_out_and_the_others_go_on(fail_at: int) -> None:
    log: list[str] = []
    bad, good = Counted("bad", log, fail_at), Counted("good", log)
    timings = measure({"bad": bad.open, "good": good.open}, PLAN)
    assert timings.failures == {"bad": "RuntimeError: bad gave up"}
    assert [len(each) for each in timings.samples["good"]] == [4, 4, 4]
    assert "bad" not in timings.samples
    assert bad.calls == fail_at


def test_an_input_error_is_told_as_it_is() -> None:
    def refuse() -> Callable[[], None]:
        raise InputError("give another one")

    assert measure({"x": refuse}, PLAN).failures == {"x": "give another one"}


def test_samples_are_seconds() -> None:
    (samples,) = measure({"x": lambda: lambda: sleep(0.01)}, TimingPlan(openings=1, rounds=3)).samples["x"]
    assert all(sample >= 0.01 for sample in samples)


def test_short_runs_are_repeated() -> None:
    log: list[str] = []
    one = Counted("x", log)
    measure({"x": one.open}, TimingPlan(openings=1, rounds=2, warmup=0, sample=1e-3))
    assert one.calls > 1 + 2 * 5


def test_the_time_is_bounded() -> None:
    timings = measure({"x": lambda: lambda: sleep(0.02)}, TimingPlan(openings=2, rounds=500, seconds=0.3))
    assert [3 <= len(each) <= 8 for each in timings.samples["x"]] == [True, True]


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    measure({"x": lambda: lambda: None}, PLAN, lambda done, total: told.append((done, total)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("field", [{"openings": 0}, {"rounds": 0}, {"warmup": -1}, {"seconds": 0.0}])
def test_impossible_plans(field: dict[str, int]) -> None:
    with pytest.raises(InputError, match=next(iter(field))):
        TimingPlan(**field)
