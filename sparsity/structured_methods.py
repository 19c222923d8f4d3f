"""Structured methods: what each does with the gates of a network's units. Pure functions of tensors.

A unit is an input of a linear layer (a pixel, a neuron of the layer before) or an output channel of a convolution.
Each has a gate, a factor. A gate at zero makes a dead neuron, which the stage `prune` removes: a smaller dense network
is left.

All methods have two phases. Until T_end (`end`) units are searched for. Then the choice is final: closed gates stay
at zero, noise and penalty end, and the remaining network is trained to the end of the run. With T_end at the end of
the run there is no second phase, as in the papers of SBP, L0 and VIB.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import e, log, pi, sqrt

import torch
from torch import Tensor


@dataclass(frozen=True)
class Units:
    """The units of one layer, as a method sees them."""

    size: int
    first: bool  # the units are the network's own inputs
    learned: Mapping[str, Tensor]  # by the method, one number per unit
    weights: Tensor  # (units, weights of each)
    options: Mapping[str, float]


@dataclass(frozen=True)
class Gating:
    """A structured method. What is None is left out.

    `score`: how much a unit matters, computed at T_end; `chooses`: how many are kept: "all" that score above zero, a
    share of each "layer", or of the "network". `learn`: numbers per unit, trained beside the weights; `noisy`: the
    gates of so many samples in training; `value`: the gates of the trained network, 0 for a removed unit; `penalty`:
    added to the loss; `constrain`: changes them in place after each step of the optimizer, with its learning rate.
    """

    score: Callable[[Units], Tensor]
    learn: Callable[[Units], dict[str, Tensor]] | None = None
    noisy: Callable[[Units, int], Tensor] | None = None
    value: Callable[[Units], Tensor] | None = None
    penalty: Callable[[Units], Tensor] | None = None
    constrain: Callable[[Units, float], None] | None = None
    chooses: str = "all"
    options: Mapping[str, float] = field(default_factory=dict)


# L0: hard concrete gates (Louizos et al. 2018). A sigmoid stretched to (LOW, HIGH) and cut to [0, 1].
LOW, HIGH, TEMPERATURE = -0.1, 1.1, 2 / 3


def l0_start(units: Units) -> dict[str, Tensor]:
    """Log odds of being open, near what the drop rate says; the authors drop less of the inputs."""
    rate = units.options["drop_inputs" if units.first else "drop"]
    return {"log_odds": log((1 - rate) / rate) + 0.01 * torch.randn(units.size)}


def l0_noisy(units: Units, samples: int) -> Tensor:
    """Draw hard concrete gates."""
    odds = units.learned["log_odds"]
    uniform = torch.rand(samples, units.size, device=odds.device, dtype=odds.dtype).clamp(1e-6, 1 - 1e-6)
    return _stretched(torch.sigmoid((uniform.logit() + odds) / TEMPERATURE))


def l0_value(units: Units) -> Tensor:
    """Return the gate without noise; log odds below log(1/11) give exactly 0."""
    return _stretched(torch.sigmoid(units.learned["log_odds"]))


def l0_penalty(units: Units) -> Tensor:
    """Return the expected number of weights behind open gates."""
    is_open = torch.sigmoid(units.learned["log_odds"] - TEMPERATURE * log(-LOW / HIGH))
    return units.options["strength"] * units.weights.shape[1] * is_open.sum()


def l0_constrain(units: Units, rate: float) -> None:
    """Keep the odds between 1:100 and 100:1, so that a gate can always come back."""
    del rate
    units.learned["log_odds"].clamp_(log(1e-2), log(1e2))


def _stretched(gate: Tensor) -> Tensor:
    return (gate * (HIGH - LOW) + LOW).clamp(0, 1)


# VIB: each unit is multiplied by N(mean, variance) (Dai et al. 2018).


def vib_start(units: Units) -> dict[str, Tensor]:
    """Means near 1, next to no noise."""
    return {
        "mean": 1 + 0.01 * torch.randn(units.size),
        "log_variance": -9 + 0.01 * torch.randn(units.size),
    }


def vib_noisy(units: Units, samples: int) -> Tensor:
    """Draw normal gates."""
    mean, deviation = units.learned["mean"], (0.5 * units.learned["log_variance"]).exp()
    return mean + deviation * torch.randn(samples, units.size, device=mean.device, dtype=mean.dtype)


def vib_value(units: Units) -> Tensor:
    """Return the mean, and 0 where the noise is larger than it: α = σ² / μ² of 1 or more."""
    mean, log_variance = units.learned["mean"], units.learned["log_variance"]
    return mean * (log_variance - (mean.square() + 1e-8).log() < 0)


def vib_penalty(units: Units) -> Tensor:
    """Return the bound on the information that passes: ½ Σ log(1 + μ² / σ²)."""
    ratio = units.learned["mean"].square() / (units.learned["log_variance"].exp() + 1e-8)
    return units.options["strength"] * 0.5 * ratio.log1p().sum()


# SBP: log-normal noise, its logarithm cut to [LEAST, 0] (Neklyudov et al. 2017).
LEAST = -20.0


def sbp_start(units: Units) -> dict[str, Tensor]:
    """Gates of 1 with next to no noise."""
    return {"mean": torch.zeros(units.size), "log_deviation": torch.full((units.size,), -5.0)}


@dataclass(frozen=True)
class CutNormal:
    """A normal distribution cut to [LEAST, 0]: of the logarithm of a gate."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, units: Units) -> "CutNormal":
        """The distribution that was learned, in double precision: differences of tails are small."""
        return cls(units.learned["mean"].double(), units.learned["log_deviation"].double().exp())

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The ends in deviations from the mean."""
        return (LEAST - self.mean) / self.deviation, -self.mean / self.deviation

    @property
    def mass(self) -> Tensor:
        """What the uncut distribution has between the ends."""
        low, high = self.ends
        return _below(high) - _below(low)

    def moment(self, order: int) -> Tensor:
        """Return E[gate^order], by logarithms: its factors leave the range of numbers where the noise is large."""
        low, high = self.ends
        shift = order * self.deviation
        below, above = torch.special.log_ndtr(low - shift), torch.special.log_ndtr(high - shift)
        inside: Tensor = above + (below - above).exp().neg().log1p()
        return (order * self.mean + 0.5 * shift.square() + inside - self.mass.log()).exp()

    def entropy(self) -> Tensor:
        """Return the entropy in nats."""
        low, high = self.ends
        edges = (low * _density(low) - high * _density(high)) / (2 * self.mass)
        size: Tensor = (sqrt(2 * pi * e) * self.deviation * self.mass).log()
        return size + edges


def _below(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-x / sqrt(2))  # torch.special.ndtr loses the lower tail


def _density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / sqrt(2 * pi)


def sbp_noisy(units: Units, samples: int) -> Tensor:
    """Draw gates by the inverse of the distribution function; single precision is enough for the many of them."""
    cut, kind = CutNormal.of(units), units.learned["mean"].dtype
    low, mass = _below(cut.ends[0]).to(kind), cut.mass.to(kind)
    place = low + mass * torch.rand(samples, units.size, device=low.device, dtype=kind)
    normal = sqrt(2) * torch.erfinv((2 * place - 1).clamp(-1 + 1e-6, 1 - 1e-6))
    return (cut.mean.to(kind) + cut.deviation.to(kind) * normal).clamp(LEAST, 0).exp()


def sbp_value(units: Units) -> Tensor:
    """Return the mean gate, and 0 where the signal-to-noise ratio is 1 or less."""
    cut = CutNormal.of(units)
    mean = cut.moment(1)
    variance = (cut.moment(2) - mean.square()).clamp_min(0)
    return (mean * (mean.square() > variance)).to(units.learned["mean"].dtype)


def sbp_penalty(units: Units) -> Tensor:
    """Return the divergence from the log-uniform prior on the same interval."""
    divergence = (log(-LEAST) - CutNormal.of(units).entropy()).sum()
    return units.options["strength"] * divergence.to(units.learned["mean"].dtype)


def sbp_constrain(units: Units, rate: float) -> None:
    """Keep the mean where the distribution is, so that the cut one never loses its mass."""
    del rate
    units.learned["mean"].clamp_(LEAST, 0)
    units.learned["log_deviation"].clamp_(-20, 5)


# Norms: filter pruning (Li et al. 2017), slimming (Liu et al. 2017), group lasso (Wen et al. 2016).


def l1_norm(units: Units) -> Tensor:
    """Return the sum of the absolute weights of each unit."""
    return units.weights.abs().sum(1)


def slimming_start(units: Units) -> dict[str, Tensor]:
    """A factor of 1; where the units come out of batch normalisation, its own factors are taken instead."""
    return {"scale": torch.ones(units.size)}


def scale_value(units: Units) -> Tensor:
    """Return the factor itself."""
    return units.learned["scale"]


def scale_penalty(units: Units) -> Tensor:
    """Return the L1 norm of the factors."""
    return units.options["strength"] * units.learned["scale"].abs().sum()


def scale_size(units: Units) -> Tensor:
    """Return the size of the factors."""
    return units.learned["scale"].abs()


def l2_norm(units: Units) -> Tensor:
    """Return the Euclidean norm of each unit's weights."""
    norms: Tensor = torch.linalg.vector_norm(units.weights, dim=1)
    return norms


def shrink_groups(units: Units, rate: float) -> None:
    """Take the proximal step of λ Σ √n ‖w‖: a unit whose weights are short enough lands on zero exactly."""
    pull = rate * units.options["strength"] * sqrt(units.weights.shape[1])
    units.weights.mul_((1 - pull / l2_norm(units)[:, None].clamp_min(1e-12)).clamp_min(0))


# The bound of SBP asks for 1 / (number of training samples); L0's authors use 0.1 / samples for each weight.
SBP = Gating(
    score=sbp_value,
    learn=sbp_start,
    noisy=sbp_noisy,
    value=sbp_value,
    penalty=sbp_penalty,
    constrain=sbp_constrain,
    options={"strength": 1 / 60_000, "rate": 1.0},
)
L0 = Gating(
    score=l0_value,
    learn=l0_start,
    noisy=l0_noisy,
    value=l0_value,
    penalty=l0_penalty,
    constrain=l0_constrain,
    options={"strength": 0.1 / 60_000, "drop": 0.5, "drop_inputs": 0.2, "rate": 1.0},
)
VIB = Gating(
    score=lambda units: vib_value(units).abs(),
    learn=vib_start,
    noisy=vib_noisy,
    value=vib_value,
    penalty=vib_penalty,
    options={"strength": 1e-4, "rate": 1.0},
)
L1_FILTER = Gating(score=l1_norm, chooses="layer")
SLIMMING = Gating(
    score=scale_size,
    learn=slimming_start,
    value=scale_value,
    penalty=scale_penalty,
    chooses="network",
    options={"strength": 1e-4, "rate": 1.0},
)
GROUP_LASSO = Gating(score=l2_norm, constrain=shrink_groups, options={"strength": 1e-4})
