"""The initial weights of a network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry
from rigl_compress.models.sparse_parameters import TRANSPOSED, sparse_layers, sparse_parameters

_BIASED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
LARGEST = 1e4  # powers and factors beyond it overflow


@dataclass(frozen=True)
class InitConfig:
    """How weights are drawn, and how they are scaled for sparse layers."""

    weights: str = "network"  # as the network's own code draws them
    scale: float = 1.0
    # Weights are multiplied by density^-power: ½ keeps the variance of a unit's sum what it was with a full fan-in,
    # 0 is the authors' code.
    sparse_power: float = 0.0

    def __post_init__(self) -> None:
        for name in ("scale", "sparse_power"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise InputError(f"init.{name} is {getattr(self, name)}, expected a number from 0 to {LARGEST:g}")
        INITIALIZERS[self.weights]  # an unknown name is an error now, not when training begins


INITIALIZERS: Registry[Callable[[Tensor], Any]] = Registry("initializer")
INITIALIZERS.register("network", lambda weight: weight)
INITIALIZERS.register("glorot-uniform", nn.init.xavier_uniform_)
INITIALIZERS.register("he-normal", lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"))


@torch.no_grad()
def initialize(model: nn.Module, config: InitConfig) -> None:
    """Draw the weights of the network from torch's global generator; with a named initializer biases start at zero."""
    draw, weights = INITIALIZERS[config.weights], sparse_parameters(model)
    for part in sparse_layers(model).values():  # gates, queries, keys and values have a fan of their own
        draw(part.of(weights[part.parameter])).mul_(config.scale)
    if config.weights != "network":
        for module in model.modules():
            if isinstance(module, _BIASED) and module.bias is not None:
                module.bias.zero_()
            if isinstance(module, nn.MultiheadAttention) and module.in_proj_bias is not None:
                module.in_proj_bias.zero_()


@torch.no_grad()
def scale_for_fan_in(model: nn.Module, densities: Mapping[str, float], power: float) -> None:
    """Scale up the weights of sparse layers for the inputs they have lost."""
    if power:
        weights = sparse_parameters(model)
        for name, part in sparse_layers(model).items():
            part.of(weights[part.parameter]).mul_(densities[name] ** -power)
