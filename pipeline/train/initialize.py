"""The weights a network starts from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.layers import sparse_layers, sparse_parameters
from rigl_compress.models.registry import Registry


@dataclass(frozen=True)
class InitConfig:
    """How weights are drawn, and how they are scaled for sparse layers."""

    weights: str = "network"  # as the network's own code draws them
    scale: float = 1.0
    # Weights are multiplied by density^-power: ½ keeps the variance of a unit's sum what it was with a full fan-in,
    # 0 is the authors' code.
    sparse_power: float = 0.0

    def __post_init__(self) -> None:
        INITIALIZERS[self.weights]  # an unknown name is an error now, not when training begins


INITIALIZERS: Registry[Callable[[Tensor], Any]] = Registry("initializer")
INITIALIZERS.register("network", lambda weight: weight)
INITIALIZERS.register("glorot-uniform", nn.init.xavier_uniform_)
INITIALIZERS.register("he-normal", lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"))


@torch.no_grad()
def initialize(model: nn.Module, config: InitConfig) -> None:
    """Draw the weights of the network from torch's global generator; with a named initializer biases start at zero."""
    draw = INITIALIZERS[config.weights]
    for weight in sparse_parameters(model).values():
        draw(weight)
        weight.mul_(config.scale)
    if config.weights != "network":
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d) and module.bias is not None:
                module.bias.zero_()


@torch.no_grad()
def scale_for_fan_in(model: nn.Module, densities: Mapping[str, float], power: float) -> None:
    """Scale up the weights of sparse layers for the inputs they have lost."""
    if power:
        weights = sparse_parameters(model)
        for name, part in sparse_layers(model).items():
            part.of(weights[part.parameter]).mul_(densities[name] ** -power)
