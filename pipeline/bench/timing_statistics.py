"""Statistics of timings, as pure functions of numbers.

Samples come in openings: each time the models are loaded, their place in memory makes them a little
faster or slower for as long as they stay open. So the samples of one opening are not independent, and what counts for
a comparison is how much the openings disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import mean, stdev

import numpy as np

Openings = Sequence[Sequence[float]]
LEVEL = 0.95
DRAWS = 1000
# Smaller differences do not matter in practice, and drown in the noise of a machine that does other work.
SMALLEST = 0.01
# Student's t for a two-sided 95 % interval, by degrees of freedom; 1.96 is its limit.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131)


@dataclass(frozen=True)
class Estimate:
    """A number and the interval in which it lies with a confidence of 95 %."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half of the interval, relative to the value."""
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


def percentile(openings: Openings, share: float) -> float:
    """Return the value below which a share of all samples lies.

    >>> percentile([[1.0, 2.0], [3.0]], 0.5)
    2.0
    """
    return float(np.quantile(np.concatenate([np.asarray(each) for each in openings]), share))


def median_estimate(openings: Openings, seed: int = 0) -> Estimate:
    """Return the median of all samples with a bootstrap interval: openings are drawn, then samples within them.

    >>> median_estimate([[1.0, 1.0, 1.0], [1.0, 1.0]])
    Estimate(value=1.0, low=1.0, high=1.0)
    """
    rng = np.random.default_rng(seed)
    groups = [np.asarray(each, dtype=float) for each in openings if len(each)]
    medians = np.empty(DRAWS)
    for draw in range(DRAWS):
        chosen = rng.integers(len(groups), size=len(groups))
        medians[draw] = np.median(np.concatenate([rng.choice(groups[each], len(groups[each])) for each in chosen]))
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(percentile(openings, 0.5), float(low), float(high))


def ratio_estimate(openings: Openings, baseline: Openings) -> Estimate:
    """Return the ratio of two candidates that were timed in the same rounds.

    Each round gives a ratio, in which what slowed both down cancels; each opening gives the median of its rounds; the
    interval is Student's over the logarithms of these. A single opening has the interval
    of its rounds.

    >>> ratio_estimate([[2.0, 2.0], [2.2, 2.2]], [[1.0, 1.0], [1.1, 1.1]]).value
    2.0
    """
    rounds = [
        [log(one / other) for one, other in zip(*pair, strict=True)] for pair in zip(openings, baseline, strict=True)
    ]
    middles = [float(np.median(each)) for each in rounds] if len(rounds) > 1 else rounds[0]
    centre = mean(middles)
    margin = _t(len(middles) - 1) * stdev(middles) / sqrt(len(middles)) if len(middles) > 1 else float("inf")
    return Estimate(exp(centre), exp(centre - margin) if margin < 700 else 0.0, exp(min(centre + margin, 700)))


def _t(freedom: int) -> float:
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.5 / freedom


def differs(ratio: Estimate) -> bool:
    """Whether two candidates differ: the whole interval of their ratio is beyond the smallest difference that matters.

    >>> differs(Estimate(1.2, 1.1, 1.3)), differs(Estimate(1.2, 0.9, 1.6)), differs(Estimate(1.005, 1.004, 1.006))
    (True, False, False)
    """
    return ratio.low > 1 + SMALLEST or ratio.high < 1 / (1 + SMALLEST)


def is_slower(ratio: Estimate) -> bool:
    """Whether a candidate is slower.

    >>> is_slower(Estimate(1.2, 1.1, 1.3)), is_slower(Estimate(1.2, 0.9, 1.6)), is_slower(Estimate(0.5, 0.4, 0.6))
    (True, False, False)
    """
    return differs(ratio) and ratio.value > 1


def too_noisy(ratio: Estimate, bound: float = 0.1) -> bool:
    """Whether the interval of a ratio is so wide that a real difference could lie in it.

    >>> too_noisy(Estimate(1.0, 0.7, 1.4)), too_noisy(Estimate(1.0, 0.98, 1.02)), too_noisy(Estimate(3.0, 2.0, 4.5))
    (True, False, False)
    """
    return not differs(ratio) and (ratio.high > ratio.value * (1 + bound) or ratio.low < ratio.value * (1 - bound))
