"""The settings of sparse training: the keywords of `Sparsifier` and the `[sparsity]` table of a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import nn

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.forward_order import find_layers
from rigl_compress.models.layers import layer_shapes
from rigl_compress.pipeline.train.distributions import DISTRIBUTIONS, fixed_densities, share_out
from rigl_compress.pipeline.train.methods import Method, find_method
from rigl_compress.pipeline.train.schedules import DECAYS, UpdateSchedule

# The paper stops the updates after about three quarters of training (§4).
LAST_UPDATE = 0.75
Budget = Literal["exclude", "include"]


@dataclass(frozen=True)
class SparsityConfig:
    """How to train sparsely. People type sparsity, the share removed; the code works with density, the share kept."""

    method: str = "rigl"
    sparsity: float = 0.9
    distribution: str = "erk"
    dense: tuple[str, ...] | None = None  # names, globs, types, "first", "last"; None: as the distribution has it
    layers: Mapping[str, float] = field(default_factory=dict)  # sparsity of single layers, by name, glob or type
    budget: Budget = "exclude"  # does `sparsity` count the layers that are fixed?
    interval: int = 100  # ΔT
    fraction: float = 0.3  # α
    decay: str = "cosine"
    power: float = 3.0  # k of inverse-power
    begin: int = 0
    end: int | None = None  # T_end; None: as `end_share` has it
    end_share: float = LAST_UPDATE  # T_end as a share of the run
    options: Mapping[str, float] = field(default_factory=dict)  # of the method, e.g. momentum of snfs
    strengths: Mapping[str, float] = field(default_factory=dict)  # factors of `strength` in single layers (structured)
    variants: tuple[str, ...] = ()  # departures from the paper, by name

    def __post_init__(self) -> None:
        _check_sparsity("sparsity", self.sparsity)
        if not 0 < self.end_share <= 1:
            raise InputError(f"end_share is {self.end_share}, expected a share of the run above 0, at most 1")
        for name, sparsity in self.layers.items():
            _check_sparsity(f"sparsity of layer {name!r}", sparsity)
        for name, strength in self.strengths.items():
            if not strength >= 0:
                raise InputError(f"strength of layer {name!r} is {strength}, expected a factor of 0 or more")
        DISTRIBUTIONS[self.distribution], DECAYS[self.decay]
        if self.budget not in (choices := get_args(Budget)):
            raise InputError(f"unknown budget {self.budget!r}: {did_you_mean(str(self.budget), choices)}")
        for what in ("dense", "variants"):
            if (names := getattr(self, what)) is not None:
                _check_names(what, names)

    @property
    def rule(self) -> Method:
        """The method, with its options and variants."""
        return find_method(self.method, self.options, self.variants)

    def schedule(self, total_steps: int | None) -> UpdateSchedule:
        """Say when updates happen in a run of so many optimizer steps.

        >>> SparsityConfig().schedule(1000).end
        750
        """
        if self.end is None and total_steps is None:
            raise InputError("the end of the updates is unknown: give total_steps (or end, T_end)")
        if self.end is not None and total_steps is not None and self.end > total_steps:
            raise InputError(
                f"updates end at step {self.end}, but the run has only {total_steps} steps: lower sparsity.end (T_end) "
                "or give sparsity.end_share in its place, a share of the run; train.multiplier scales epochs and end"
            )
        if total_steps is not None and self.begin > total_steps:
            raise InputError(
                f"updates begin at step {self.begin}, but the run has only {total_steps} steps: lower sparsity.begin, "
                "or train longer (train.epochs)"
            )
        end = max(self.begin, int((total_steps or 0) * self.end_share)) if self.end is None else self.end
        return UpdateSchedule(self.interval, end, self.fraction, self.decay, self.power, self.begin)

    def densities(self, model: nn.Module) -> dict[str, float]:
        """Give every layer of the model its density: weights, and the gates of recurrent weights one by one."""
        shapes = layer_shapes(model)
        if not shapes:
            raise InputError("the model has no Linear, convolution or recurrent layer that could be sparse")
        if self.rule.dense:
            return dict.fromkeys(shapes, 1.0)
        distribution = DISTRIBUTIONS[self.distribution]
        patterns = distribution.dense if self.dense is None else self.dense
        dense = [name for pattern in patterns for name in find_layers(model, pattern, shapes)]
        custom = self.unit_densities(model)
        return share_out(shapes, 1 - self.sparsity, distribution.share, fixed_densities(dense, custom), self.budget)

    def unit_densities(self, model: nn.Module) -> dict[str, float]:
        """Give the share of units that structured methods keep in the layers that are named one by one."""
        return {name: 1 - sparsity for name, sparsity in _by_layer("sparsity.layers", self.layers, model).items()}

    def strengths_in(self, model: nn.Module) -> dict[str, float]:
        """Give the factors of a penalty's strength in the layers that are named one by one."""
        return _by_layer("sparsity.strengths", self.strengths, model)


def _by_layer(key: str, values: Mapping[str, float], model: nn.Module) -> dict[str, float]:
    names = layer_shapes(model)
    try:
        return {name: value for pattern, value in values.items() for name in find_layers(model, pattern, names)}
    except InputError as error:  # of a recipe for another network, mostly
        raise InputError(f"{key}: {error}; name layers of this network, or set {key} to {{}}") from None


def _check_names(what: str, names: object) -> None:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        cure = f'("{names}",)' if isinstance(names, str) else '("first",)'
        raise InputError(f"{what} is {names!r}, expected several names: write {what}={cure}")


def _check_sparsity(what: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{what} is {value}, expected at least 0 and below 1 (0.9 removes nine of ten connections)")
