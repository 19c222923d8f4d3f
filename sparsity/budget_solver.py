"""Densities for all layers that keep an error least within a budget: dynamic programming over candidates.

Each layer has some candidates, each with a cost (time, bytes, FLOPs or weights) and an error; errors of layers add up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BINS = 4000  # of the budget: a choice is at most one bin for each layer from the best


@dataclass(frozen=True)
class Candidate:
    """A density of a layer, what it costs and what it loses."""

    density: float
    cost: float
    error: float


@dataclass(frozen=True)
class Choice:
    """A candidate for every layer. `met`: within the budget; if not, it is the cheapest that there is."""

    chosen: Mapping[str, Candidate]
    met: bool

    @property
    def cost(self) -> float:
        """The sum over layers."""
        return sum(each.cost for each in self.chosen.values())

    @property
    def error(self) -> float:
        """The sum over layers."""
        return sum(each.error for each in self.chosen.values())

    @property
    def densities(self) -> dict[str, float]:
        """The density of each layer."""
        return {name: each.density for name, each in self.chosen.items()}


def without_idle_zeros(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates from the densest on that each cost less than all denser ones: other zeros save nothing.

    >>> every = [Candidate(0.5, 9, 0.2), Candidate(1, 9, 0), Candidate(0.1, 2, 1)]
    >>> [each.density for each in without_idle_zeros(every)]
    [1, 0.1]
    """
    found: list[Candidate] = []
    for each in sorted(candidates, key=lambda one: -one.density):
        if not found or each.cost < found[-1].cost * (1 - 1e-9):
            found.append(each)
    return found


def choose(candidates: Mapping[str, Sequence[Candidate]], budget: float) -> Choice:
    """Return the candidates whose costs are at most the budget in sum, and whose errors are least.

    >>> a = [Candidate(1.0, 10, 0.0), Candidate(0.5, 5, 0.1)]
    >>> b = [Candidate(1.0, 10, 0.0), Candidate(0.5, 5, 0.4)]
    >>> choose({"a": a, "b": b}, 15).densities, choose({"a": a, "b": b}, 9).met
    ({'a': 0.5, 'b': 1.0}, False)
    """
    cheapest = {name: min(each, key=lambda one: (one.cost, one.error)) for name, each in candidates.items()}
    least = sum(each.cost for each in cheapest.values())
    if least >= budget * (1 - 1e-12):
        return Choice(cheapest, met=least <= budget * (1 + 1e-12))
    free = {name: min(each, key=lambda one: (one.error, one.cost)) for name, each in candidates.items()}
    if sum(each.cost for each in free.values()) <= budget:
        return Choice(free, met=True)
    return Choice(_picked(candidates, {name: each.cost for name, each in cheapest.items()}, budget), met=True)


def _picked(
    candidates: Mapping[str, Sequence[Candidate]], least: Mapping[str, float], budget: float
) -> dict[str, Candidate]:
    """Spend what is left of the budget above the cheapest candidates, in bins."""
    size = (budget - sum(least.values())) / BINS
    best = np.zeros(BINS + 1)
    steps: list[np.ndarray] = []
    for name, each in candidates.items():
        extra = [int(np.ceil((one.cost - least[name]) / size - 1e-9)) for one in each]
        table = np.full((len(each), BINS + 1), np.inf)
        for row, (bins, one) in enumerate(zip(extra, each, strict=True)):
            if bins <= BINS:
                table[row, bins:] = best[: BINS + 1 - bins] + one.error
        steps.append(table.argmin(0))
        best = table.min(0)
    return _traced(candidates, least, steps, size)


def _traced(
    candidates: Mapping[str, Sequence[Candidate]],
    least: Mapping[str, float],
    steps: Sequence[np.ndarray],
    size: float,
) -> dict[str, Candidate]:
    found: dict[str, Candidate] = {}
    left = BINS
    for (name, each), chosen in zip(reversed(list(candidates.items())), reversed(steps), strict=True):
        one = each[int(chosen[left])]
        found[name] = one
        left -= int(np.ceil((one.cost - least[name]) / size - 1e-9))
    return {name: found[name] for name in candidates}
