"""Optimizers by name, with weight decay on weights alone, and groups of parameters by pattern."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry
from rigl_compress.models.parameter_patterns import find_parameters


@dataclass(frozen=True)
class ParameterGroup:
    """How the parameters of a pattern are trained. A parameter belongs to the first group that matches it."""

    match: str  # a name, a module, a glob, a module type, "first" or "last"
    rate: float = 1.0  # factor on the learning rate
    weight_decay: float | None = None  # of its weights; None: as the optimizer has it
    frozen: bool = False  # not trained at all

    def __post_init__(self) -> None:
        where = f"optimizer.groups: of {self.match!r},"
        if not 0 < self.rate < inf:
            raise InputError(f"{where} rate is {self.rate}, expected a factor above 0; frozen = true trains nothing")
        if self.frozen and (self.rate != 1 or self.weight_decay is not None):
            raise InputError(f"{where} frozen = true trains nothing: leave out its rate and weight_decay")
        if self.weight_decay is not None and not self.weight_decay >= 0:
            raise InputError(f"{where} weight_decay is {self.weight_decay}, expected 0 or more")


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of a recipe; the learning rate has a table of its own."""

    name: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0  # of weights; biases and normalisation parameters are not decayed
    groups: tuple[ParameterGroup, ...] = ()
    beta2: float = 0.999
    fused: bool = False  # one pass over the weights instead of several: faster, and rounded differently

    def __post_init__(self) -> None:
        if not self.weight_decay >= 0:
            raise InputError(f"optimizer: weight_decay is {self.weight_decay}, expected 0 or more")
        OPTIMIZERS[self.name]  # an unknown name is an error now, not when training starts


OPTIMIZERS: Registry[Callable[[list[dict[str, Any]], OptimizerConfig], Optimizer]] = Registry("optimizer")
OPTIMIZERS.register(
    "sgd",
    lambda groups, config: torch.optim.SGD(
        groups,
        lr=0.0,
        momentum=config.momentum,
        nesterov=config.nesterov and config.momentum > 0,
        fused=config.fused or None,  # None: torch chooses
    ),
)
OPTIMIZERS.register(
    "adam",
    lambda groups, config: torch.optim.Adam(groups, lr=0.0, betas=(0.9, config.beta2), fused=config.fused or None),
)
OPTIMIZERS.register(
    "adamw",
    lambda groups, config: torch.optim.AdamW(groups, lr=0.0, betas=(0.9, config.beta2), fused=config.fused or None),
)


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> Optimizer:
    """Freeze what the config freezes, and build the optimizer of the rest, a group per rate and weight decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    members = group_members(model, config)
    for name, parameter in model.named_parameters():
        group = members.get(name, ParameterGroup(name))
        parameter.requires_grad_(parameter.requires_grad and not group.frozen)
        if parameter.requires_grad:
            groups.setdefault((_decay(parameter, group, config), group.rate), []).append(parameter)
    if not groups:
        raise InputError("every parameter is frozen, by the model or optimizer.groups: leave some to be trained")
    settings = [{"params": each, "weight_decay": decay, "rate": rate} for (decay, rate), each in groups.items()]
    try:
        return OPTIMIZERS[config.name](settings, config)
    except ValueError as error:
        raise InputError(f"optimizer {config.name!r}: {error}; change [optimizer] of the recipe") from None


def _decay(parameter: nn.Parameter, group: ParameterGroup, config: OptimizerConfig) -> float:
    """Return the weight decay of a parameter; those of one dimension are not decayed."""
    if parameter.dim() < 2:
        return 0.0
    return config.weight_decay if group.weight_decay is None else group.weight_decay


def group_members(model: nn.Module, config: OptimizerConfig) -> dict[str, ParameterGroup]:
    """Return the group of each parameter that is in one; raise for a group that changes nothing.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> groups = (ParameterGroup("*.bias", frozen=True), ParameterGroup("0", rate=0.1))
    >>> {name: group.match for name, group in group_members(model, OptimizerConfig(groups=groups)).items()}
    {'0.bias': '*.bias', '1.bias': '*.bias', '0.weight': '0'}
    """
    parameters = dict(model.named_parameters())
    members: dict[str, ParameterGroup] = {}
    for group in config.groups:
        try:
            matched = find_parameters(model, group.match, parameters)
        except InputError as error:
            raise InputError(f"optimizer.groups: {error}") from None
        new = [name for name in matched if name not in members]
        _check_effect(group, new, any(parameters[name].dim() > 1 for name in new))
        members |= dict.fromkeys(new, group)
    return members


def _check_effect(group: ParameterGroup, new: list[str], has_weights: bool) -> None:
    if not new:
        raise InputError(f"optimizer.groups: earlier groups match all of {group.match!r}: move it before them")
    if group.weight_decay and not has_weights:
        raise InputError(
            f"optimizer.groups: {group.match!r} matches no weight, and biases and normalisation are not decayed: "
            "leave out its weight_decay"
        )


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of all groups, times the group's factor (`rate`) if it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)
