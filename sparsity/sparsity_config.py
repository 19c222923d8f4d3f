"""The settings of sparse training: the keywords of `Sparsifier` and the `[sparsity]` table of a recipe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal, get_args

from torch import nn

from rigl_compress.core.errors import LONGEST_LINE, InputError, did_you_mean
from rigl_compress.core.import_by_name import is_reference
from rigl_compress.models.forward_order import find_layers
from rigl_compress.models.sparse_parameters import dense_by_default, layer_shapes
from rigl_compress.sparsity.budgets import parse_budget
from rigl_compress.sparsity.distributions import DISTRIBUTIONS, fixed_densities, share_out
from rigl_compress.sparsity.method_variants import find_method
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.schedules import DECAYS, UpdateSchedule

# The paper stops the updates after about three quarters of training (§4).
LAST_UPDATE = 0.75
COUNTED = ("exclude", "include")
Kernels = Literal["auto", "sparse", "masked"]


@dataclass(frozen=True)
class SparsityConfig:
    """How to train sparsely. Users set sparsity, the share removed; the code works with density, the share kept."""

    method: str | Method = "rigl"  # a recipe has its name, or package.module:NAME
    sparsity: float = 0.9
    distribution: str = "erk"
    # Names, globs, types, "first", "last"; None: those of the distribution, and those that the network names itself
    dense: tuple[str, ...] | None = None
    layers: Mapping[str, float] = field(default_factory=dict)  # sparsity of single layers, by name, glob or type
    # Does `sparsity` count the layers that are fixed? With the distribution "budget": "speedup=3", "latency=8ms", …
    budget: str = "exclude"
    interval: int = 100  # ΔT
    fraction: float = 0.3  # α
    decay: str = "cosine"
    power: float = 3.0  # k of inverse-power
    begin: int = 0
    begin_share: float = 0.0  # the first update as a share of the run, where `begin` is 0
    end: int | None = None  # T_end; None: as `end_share` has it
    end_share: float = LAST_UPDATE  # T_end as a share of the run
    options: Mapping[str, float] = field(default_factory=dict)  # of the method, e.g. momentum of snfs
    strengths: Mapping[str, float] = field(default_factory=dict)  # factors of `strength` in single layers (structured)
    variants: tuple[str, ...] = ()  # departures from the paper, by name
    kernels: Kernels = "masked"  # what layers compute with: "sparse", "masked", or "auto" for whichever is faster

    def __post_init__(self) -> None:
        _check_sparsity("sparsity", self.sparsity)
        for name in ("interval", "begin", "end"):
            if not isinstance(getattr(self, name), int | None):
                raise InputError(f"{name} is {getattr(self, name)!r}, expected a whole number of steps")
        if not 0 < self.end_share <= 1:
            raise InputError(f"end_share is {self.end_share}, expected a share of the run above 0, at most 1")
        if not 0 <= self.begin_share <= 1 or (self.begin and self.begin_share):
            raise InputError(
                f"begin_share is {self.begin_share} and begin is {self.begin}, expected one of them: a share of the "
                "run from 0 to 1, or a step"
            )
        for name, sparsity in self.layers.items():
            _check_sparsity(f"sparsity of layer {name!r}", sparsity)
        for name, strength in self.strengths.items():
            if not strength >= 0:
                raise InputError(f"strength of layer {name!r} is {strength}, expected a factor of 0 or more")
        DISTRIBUTIONS.check(self.distribution)
        DECAYS.check(self.decay)
        self._check_budget()
        if self.kernels not in (choices := get_args(Kernels)):
            raise InputError(f"unknown kernels {self.kernels!r}: {did_you_mean(str(self.kernels), choices)}")
        for what in ("dense", "variants"):
            if (names := getattr(self, what)) is not None:
                _check_names(what, names)

    def _check_budget(self) -> None:
        """Raise for a budget that is of no use to the distribution; code from outside is not imported for it."""
        if is_reference(self.distribution):
            return
        if self.solves and self.budget in COUNTED:
            raise InputError(
                f'the distribution {self.distribution!r} needs a budget: set budget = "speedup=3", "latency=8ms", '
                '"size=4MB" or "flops=100M"'
            )
        if self.solves:
            parse_budget(self.budget)
        elif "=" in str(self.budget):
            raise InputError(
                f"budget is {self.budget!r}, but the distribution {self.distribution!r} shares out connections: set "
                'distribution = "budget"'
            )
        elif self.budget not in COUNTED:
            raise InputError(f"unknown budget {self.budget!r}: {did_you_mean(str(self.budget), COUNTED)}")

    @property
    def solves(self) -> bool:
        """Whether the densities come from a budget and an example input, not from a sparsity."""
        return DISTRIBUTIONS[self.distribution].solve is not None

    @property
    def rule(self) -> Method:
        """The method, with its options and variants."""
        return find_method(self.method, self.options, self.variants)

    @property
    def method_name(self) -> str:
        """The method as a text: its name, or its reference."""
        return self.method.name if isinstance(self.method, Method) else self.method

    def check_method(self) -> None:
        """Raise if the method, its options or its variants are unknown. A reference is not imported."""
        if not (isinstance(self.method, str) and is_reference(self.method)):
            self.rule  # noqa: B018

    def schedule(self, total_steps: int | None) -> UpdateSchedule:
        """Return the update schedule of a run of so many optimizer steps.

        >>> SparsityConfig().schedule(1000).end, SparsityConfig(begin_share=0.1).schedule(1000).begin
        (750, 100)
        """
        if self.end is None and total_steps is None:
            raise InputError("the end of the updates is unknown: set total_steps (or end, T_end)")
        if self.end is not None and total_steps is not None and self.end > total_steps:
            raise InputError(
                f"updates end at step {self.end}, but the run has only {total_steps} steps: lower sparsity.end (T_end) "
                "or set sparsity.end_share instead, a share of the run; train.multiplier scales epochs and end"
            )
        if total_steps is None and self.begin_share:
            raise InputError(f"begin_share is {self.begin_share}, a share of a run of unknown length: set total_steps")
        begin = self.begin or int((total_steps or 0) * self.begin_share)
        if total_steps is not None and begin > total_steps:
            raise InputError(
                f"updates begin at step {self.begin}, but the run has only {total_steps} steps: lower sparsity.begin, "
                "or train longer (train.epochs)"
            )
        end = max(begin, int((total_steps or 0) * self.end_share)) if self.end is None else self.end
        return UpdateSchedule(self.interval, end, self.fraction, self.decay, self.power, begin)

    def ignored(self) -> list[str]:
        """Return a sentence for each setting without effect.

        >>> SparsityConfig(end=100, end_share=0.3).ignored()
        ['end_share = 0.3 has no effect: end = 100 takes precedence; remove one of the two']
        """
        found = []
        if self.end is not None and self.end_share != LAST_UPDATE:
            share = f"end_share = {self.end_share} has no effect"
            found.append(f"{share}: end = {self.end} takes precedence; remove one of the two")
        if self.solves and not self.layers and self.sparsity != SparsityConfig.sparsity:
            found.append(f"sparsity = {self.sparsity} has no effect: the budget {self.budget} decides; remove it")
        return found

    def met_already(self) -> list[str]:
        """Return a sentence if fitting to a budget left every connection."""
        idle = self.solves and not self.rule.dense and bool(self.layers) and not any(self.layers.values())
        return [f"the budget {self.budget} is already met by the dense network: nothing is removed"] if idle else []

    def densities(self, model: nn.Module) -> dict[str, float]:
        """Return the density of every layer of the model; gates, queries, keys and values are layers of their own."""
        shapes = layer_shapes(model)
        if not shapes:
            raise InputError(
                "the model has no Linear, convolution, recurrent or attention layer that could be sparse, only "
                f"{_kinds(model)}: use a model with such layers, or one whose layers are of torch.nn"
            )
        if self.rule.dense:
            return dict.fromkeys(shapes, 1.0)
        share, fixed = DISTRIBUTIONS[self.distribution].share, self.fixed_densities(model)
        if self.solves and not fixed.keys() >= shapes.keys():
            raise InputError(
                f"the budget {self.budget} needs the sizes of activations: pass example_input to the Sparsifier, a "
                "batch of one sample"
            )
        if self.sparsity > 0 and all(fixed.get(name) == 1 for name in shapes) and not self.layers:
            raise InputError(
                f"sparsity is {self.sparsity}, but every layer that could be sparse is kept dense "
                f"({', '.join([*shapes][:3])}{', …' if len(shapes) > 3 else ''}): change sparsity.dense (the "
                f'distribution {self.distribution!r} has its own), or train with method = "dense"'
            )
        return share_out(shapes, 1 - self.sparsity, share, fixed, self.budget)

    def fitted(self, model: nn.Module, example_input: Any) -> "SparsityConfig":
        """Return the settings with the sparsity of every layer that meets the budget; others as they are.

        >>> config = SparsityConfig(distribution="budget", budget="flops=500")
        >>> import torch
        >>> round(config.fitted(nn.Linear(100, 10), torch.rand(1, 100)).sparsity, 2)
        0.75
        """
        solve = DISTRIBUTIONS[self.distribution].solve
        if solve is not None and self.rule.narrow:
            raise InputError(
                f"method {self.method_name!r} narrows the network by a sparsity, not by the budget {self.budget}: "
                "choose another method, or another distribution"
            )
        if solve is None or self.rule.dense:
            return self
        found = solve(model, example_input, self.budget, self.fixed_densities(model))
        sizes = {name: prod(shape) for name, shape in layer_shapes(model).items()}
        sparsity = 1 - sum(found[name] * size for name, size in sizes.items()) / sum(sizes.values())
        layers = {name: 1 - density for name, density in found.items()}
        return replace(self, layers=layers, sparsity=max(0.0, sparsity))

    def fixed_densities(self, model: nn.Module) -> dict[str, float]:
        """Return the densities of layers that the distribution does not decide: of `dense` and `layers`."""
        shapes = layer_shapes(model)
        dense = [name for pattern in self.dense_patterns(model) for name in find_layers(model, pattern, shapes)]
        return fixed_densities(dense, self.unit_densities(model))

    def dense_patterns(self, model: nn.Module) -> tuple[str, ...]:
        """Return the layers that stay dense: those of `dense`, or of the distribution and the model."""
        distribution = DISTRIBUTIONS[self.distribution]
        return (*distribution.dense, *dense_by_default(model)) if self.dense is None else self.dense

    def keeping_dense(self, names: Iterable[str], model: nn.Module) -> "SparsityConfig":
        """Return the settings with more layers that stay dense.

        >>> SparsityConfig(distribution="uniform").keeping_dense(["fc2.weight"], nn.Identity()).dense
        ('first', 'fc2.weight')
        """
        return replace(self, dense=(*self.dense_patterns(model), *names))

    def unit_densities(self, model: nn.Module) -> dict[str, float]:
        """Return the share of units that structured methods keep, for the layers of `layers`."""
        return {name: 1 - sparsity for name, sparsity in _by_layer("sparsity.layers", self.layers, model).items()}

    def strengths_in(self, model: nn.Module) -> dict[str, float]:
        """Return the factors of the penalty's strength, for the layers of `strengths`."""
        return _by_layer("sparsity.strengths", self.strengths, model)


def _kinds(model: nn.Module) -> str:
    """List the types of layers of a model.

    >>> model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    >>> model[1].weight = model[0].weight
    >>> _kinds(model)
    'Embedding, Linear (its weight is that of an embedding, which stays dense)'
    """
    kinds = dict.fromkeys(type(each).__name__ for each in model.modules() if not [*each.children()])
    tied = " (its weight is that of an embedding, which stays dense)"
    return ", ".join(f"{each}{tied if each == 'Linear' else ''}" for each in kinds)[:LONGEST_LINE]


def _by_layer(key: str, values: Mapping[str, float], model: nn.Module) -> dict[str, float]:
    names = layer_shapes(model)
    try:
        return {name: value for pattern, value in values.items() for name in find_layers(model, pattern, names)}
    except InputError as error:  # usually of a recipe for another network
        raise InputError(f"{key}: {error}; name layers of this network, or set {key} to {{}}") from None


def _check_names(what: str, names: object) -> None:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        cure = f'("{names}",)' if isinstance(names, str) else '("first",)'
        raise InputError(f"{what} is {names!r}, expected several names: write {what}={cure}")


def _check_sparsity(what: str, value: float) -> None:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{what} is {value}, expected at least 0 and below 1 (0.9 removes nine of ten connections)")
