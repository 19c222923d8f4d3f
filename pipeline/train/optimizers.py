"""Optimizers by name, with weight decay on weights alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rigl_compress.models.errors import InputError
from rigl_compress.models.forward_order import find_layers
from rigl_compress.models.registry import Registry


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer of a recipe; the learning rate has a table of its own."""

    name: str = "sgd"
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 0.0  # of weights; biases and normalisation parameters are not decayed
    weight_decays: Mapping[str, float] = field(default_factory=dict)  # of single layers, by name, glob or type
    beta2: float = 0.999
    fused: bool = False  # one pass over the weights instead of several: faster, and rounded differently

    def __post_init__(self) -> None:
        for name, decay in {"weight_decay": self.weight_decay, **self.weight_decays}.items():
            if not decay >= 0:
                raise InputError(f"optimizer: {name} is {decay}, expected 0 or more")
        OPTIMIZERS[self.name]  # an unknown name is an error now, not when training begins


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
    """Build the optimizer with a group per weight decay; what is no weight (below two dimensions) does not decay."""
    decays = weight_decays(model, config)
    groups: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        groups.setdefault(decays[name], []).append(parameter)
    build = OPTIMIZERS[config.name]
    try:
        return build([{"params": members, "weight_decay": decay} for decay, members in groups.items()], config)
    except ValueError as error:
        raise InputError(f"optimizer {config.name!r}: {error}; change [optimizer] of the recipe") from None


def weight_decays(model: nn.Module, config: OptimizerConfig) -> dict[str, float]:
    """Give the weight decay of every parameter.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> weight_decays(model, OptimizerConfig(weight_decay=0.1, weight_decays={"1": 0.3}))
    {'0.weight': 0.1, '0.bias': 0.0, '1.weight': 0.3, '1.bias': 0.0}
    """
    weights = [name for name, parameter in model.named_parameters() if parameter.dim() >= 2]
    decays = dict.fromkeys(dict(model.named_parameters()), 0.0) | dict.fromkeys(weights, config.weight_decay)
    for pattern, decay in config.weight_decays.items():
        decays |= dict.fromkeys(find_layers(model, pattern, weights), decay)
    return decays


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of all groups; one with a factor of its own (`rate`) gets so many times it."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)
