"""When the topology changes, and by how much. Pure functions of the step; no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry, as_callable

# (share of the schedule that has passed, power) → share of the drop fraction α that is used.
Decay = Callable[[float, float], float]


def cosine(passed: float, power: float) -> float:
    """½ (1 + cos(π t / T_end)): the paper's default.

    >>> [round(cosine(passed, 0), 2) for passed in (0, 0.5, 1)]
    [1.0, 0.5, 0.0]
    """
    del power
    return (1 + cos(pi * passed)) / 2


def constant(passed: float, power: float) -> float:
    """Always α (Appendix G).

    >>> constant(0.7, 0)
    1.0
    """
    del passed, power
    return 1.0


def inverse_power(passed: float, power: float) -> float:
    """(1 − t / T_end)^k (Appendix G): k = 1 is linear, k = 3 is the default of gradual pruning.

    >>> inverse_power(0.5, 3)
    0.125
    """
    return float((1 - passed) ** power)


DECAYS: Registry[Decay] = Registry(
    "decay", group="rigl_compress.schedules", adapt=lambda name, found: as_callable(found, f"decay {name!r}")
)
DECAYS.register("cosine", cosine)
DECAYS.register("constant", constant)
DECAYS.register("inverse-power", inverse_power)


def register_schedule(name: str) -> Callable[[Decay], Decay]:
    """Return a decorator that registers a decay of the update schedule, for the key `sparsity.decay` of a recipe."""
    return DECAYS.register(name)


@dataclass(frozen=True)
class UpdateSchedule:
    """ΔT, T_end, α and the decay of the paper's §3 (2), from step `begin` on.

    Steps are optimizer steps. The end is inclusive as in the authors' code (the paper writes t < T_end; with the cosine
    decay nothing changes at T_end anyway).

    >>> schedule = UpdateSchedule(interval=100, end=1000, fraction=0.3)
    >>> [step for step in range(0, 500) if schedule.due(step)]
    [0, 100, 200, 300, 400]
    >>> schedule.at(0), round(schedule.at(500), 3), schedule.at(1001)
    (0.3, 0.15, 0.0)
    """

    interval: int = 100
    end: int = 25_000
    fraction: float = 0.3
    decay: str = "cosine"
    power: float = 3.0
    begin: int = 0

    def __post_init__(self) -> None:
        if self.interval < 1:
            raise InputError(f"interval (ΔT) is {self.interval}, expected 1 or more steps between updates")
        if not 0 <= self.fraction <= 1:
            raise InputError(f"fraction (α) is {self.fraction}, expected a share between 0 and 1")
        if not 0 <= self.begin <= self.end:
            raise InputError(f"updates begin at step {self.begin} and end at {self.end}: expected 0 <= begin <= end")
        DECAYS[self.decay]  # an unknown name is an error now, not at the first update

    def due(self, step: int) -> bool:
        """Whether the topology is updated at this step."""
        return self.begin <= step <= self.end and (step - self.begin) % self.interval == 0

    def passed(self, step: int) -> float:
        """Return the share of the schedule that has passed.

        Counted from `begin`, so that the decay starts at α and ends at 0 wherever it begins.
        """
        span = self.end - self.begin
        return min(1.0, max(0.0, (step - self.begin) / span)) if span else float(step >= self.end)

    def at(self, step: int) -> float:
        """Return f_decay(t): the share of each layer's connections to be replaced at this step."""
        if not self.begin <= step <= self.end:
            return 0.0
        return self.fraction * DECAYS[self.decay](self.passed(step), self.power)

    @property
    def updates(self) -> int:
        """The number of updates in a run that lasts past the end."""
        return (self.end - self.begin) // self.interval + 1


def pruned_density(passed: float, final: float) -> float:
    """Return the density of gradual magnitude pruning: sparsity rises as 1 − (1 − t)³ (Zhu & Gupta).

    >>> [round(pruned_density(passed, 0.1), 4) for passed in (0, 0.5, 1)]
    [1.0, 0.2125, 0.1]
    """
    return 1 - (1 - final) * (1 - (1 - passed) ** 3)
