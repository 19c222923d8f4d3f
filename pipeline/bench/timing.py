"""Timing candidates against each other. Knows no runtime: a candidate is something that opens and then runs.

All candidates are open at the same time and take turns, in a new order every round, so that whatever else the machine
does affects all of them alike. They are reopened several times, since timings depend on where a model lies in memory.
"""

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Generic, TypeVar

from rigl_compress.core.errors import InputError

Key = TypeVar("Key")
Call = Callable[[], object]
Open = Callable[[], Call]
Listener = Callable[[int, int], None]
_FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class TimingPlan:
    """How long and how often. `seconds` limits the time per candidate; rounds are skipped to stay within it."""

    openings: int = 5
    rounds: int = 20
    warmup: int = 3
    seconds: float = 10.0
    sample: float = 2e-4  # a sample is at least so long; shorter runs are repeated and averaged
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("openings", 1), ("rounds", 1), ("warmup", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}, expected {least} or more")
        if not self.seconds > 0:
            raise InputError(f"seconds is {self.seconds}, expected a time above 0")


@dataclass
class TimingSamples(Generic[Key]):
    """Samples in seconds by candidate and opening, and the reasons of those that failed."""

    samples: dict[Key, list[list[float]]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)


def measure(
    candidates: Mapping[Key, Open], plan: TimingPlan, listener: Listener = lambda *_: None
) -> TimingSamples[Key]:
    """Time candidates in turns. One that fails, at any time, is left out from then on; the others continue.

    >>> timings = measure({"one": lambda: lambda: None, "bad": lambda: 1 / 0}, TimingPlan(openings=2, rounds=4))
    >>> [len(each) for each in timings.samples["one"]], timings.failures
    ([4, 4], {'bad': 'ZeroDivisionError: division by zero'})
    """
    timings: TimingSamples[Key] = TimingSamples({key: [] for key in candidates})
    rng = random.Random(plan.seed)
    listener(0, plan.openings)
    for opening in range(plan.openings):
        _one_opening(candidates, plan, timings, rng)
        listener(opening + 1, plan.openings)
    for key in timings.failures:
        timings.samples.pop(key)
    return timings


def _one_opening(
    candidates: Mapping[Key, Open], plan: TimingPlan, timings: TimingSamples[Key], rng: random.Random
) -> None:
    running: dict[Key, Call] = {}
    repeats: dict[Key, int] = {}
    slowest = 0.0
    for key in rng.sample(list(candidates), len(candidates)):  # the order of opening matters, too
        if key in timings.failures:
            continue
        with _noting(key, timings):
            opened = candidates[key]()
            once = _warm_up(opened, plan.warmup)
            running[key], repeats[key] = opened, max(1, ceil(plan.sample / once))
            slowest = max(slowest, once * repeats[key])
    rounds = _rounds(plan, slowest)
    drawn: dict[Key, list[float]] = {key: [] for key in running}
    with _no_collection():
        for _ in range(rounds):
            for key in rng.sample(list(running), len(running)):
                if key not in timings.failures:
                    with _noting(key, timings):
                        drawn[key].append(_sample(running[key], repeats[key]))
    for key, samples in drawn.items():
        timings.samples[key].append(samples)


def _warm_up(run: Call, times: int) -> float:
    """Run a few times, and return the time of the last."""
    for _ in range(times):
        run()
    return max(_sample(run, 1), 1e-9)


def _rounds(plan: TimingPlan, slowest: float) -> int:
    """Yield the rounds of an opening that the time allows, but at least a few of them."""
    affordable = int(plan.seconds / plan.openings / slowest) if slowest else plan.rounds
    return min(plan.rounds, max(_FEWEST_ROUNDS, affordable))


def _sample(run: Call, repeats: int) -> float:
    begin = perf_counter()
    for _ in range(repeats):
        run()
    return (perf_counter() - begin) / repeats


@contextmanager
def _noting(key: Key, timings: TimingSamples[Key]) -> Iterator[None]:
    """Record why a candidate failed."""
    try:
        yield
    except Exception as error:  # runtimes raise all kinds of errors
        text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        timings.failures[key] = " ".join(text.split())[:300]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection while samples are taken."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
