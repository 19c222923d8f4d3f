"""FLOPs of ImageNet networks as the authors of the paper count them, with the quirks of their counter.

- A convolution after a separate padding layer is counted as a `same` convolution of the padded image: the first layers
  and the strided depth-wise ones have a surplus row and column of outputs, ResNet-50's first layer three.
- A depth-wise convolution is counted as an ordinary one with a single output channel: it has one bias, and one ReLU at
  each position, instead of one per channel. (In Keras it is a subclass of the ordinary one.)
- Widths scale the inputs and the outputs of each layer separately, rounding down.
- Layer densities are those of the network of width 1, whatever the width.

These quirks are the shapes of the layers; FLOPs come from `models/layer_flops.py` as everywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt, prod

import torch
from torch import nn

from rigl_compress.models.flop_counter import layer_uses
from rigl_compress.models.layer_flops import FlopReport, LayerUse, flop_report
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.networks.convolutions import channels
from rigl_compress.sparsity.sparsity_config import SparsityConfig

CONVENTION = "micronet"


@dataclass(frozen=True)
class Counted:
    """A network of the paper with densities by layer and a width, as its authors count it."""

    network: str
    densities: Mapping[str, float]
    width: float = 1.0

    @property
    def report(self) -> FlopReport:
        """FLOPs of the forward pass of one image."""
        uses = [_use(layer, self.width) for layer in _layers(self.network)]
        return flop_report(uses, {use.parameter: self._active(use) for use in uses}, CONVENTION)

    @property
    def ratio(self) -> float:
        """FLOPs as a share of those of the dense network of width 1."""
        return self.report.sparse / Counted(self.network, {}).report.dense

    @property
    def sparsity(self) -> float:
        """Share of the weights that are zero."""
        return 1 - self.report.density

    def _active(self, use: LayerUse) -> float:
        return self.densities.get(use.parameter, 1.0) * use.weights


def dense(network: str, width: float = 1.0) -> Counted:
    """Return the dense network.

    >>> dense("mobilenet-v1").report.dense, round(dense("resnet-50").report.dense / 1e9, 4)
    (1141543864, 8.2023)
    """
    return Counted(network, {}, width)


def sparse(network: str, sparsity: SparsityConfig, width: float = 1.0) -> Counted:
    """Return the network with the layer densities of a sparsity configuration."""
    return Counted(network, sparsity.densities(_built(network)), width)


@dataclass(frozen=True)
class _Layer:
    """A layer of the authors' counter: the shape of its weight (outputs, inputs, kernel) and the side of its output."""

    name: str
    parameter: str
    shape: tuple[int, ...]
    side: int
    first: bool
    last: bool


@cache
def _built(network: str) -> nn.Module:
    with torch.device("meta"):
        return ModelSpec(network).build()


@cache
def _layers(network: str) -> tuple[_Layer, ...]:
    model = _built(network)
    uses = layer_uses(model, ModelSpec(network).example().to("meta"))
    return tuple(
        _Layer(
            use.name,
            use.parameter,
            tuple(model.get_parameter(use.parameter).shape),
            isqrt(use.positions) + _surplus_rows(model.get_submodule(use.name), first=use is uses[0]),
            use is uses[0],
            use is uses[-1],
        )
        for use in uses
    )


def _surplus_rows(module: nn.Module, *, first: bool) -> int:
    """Return the surplus rows of outputs that a `same` convolution of the padded image has.

    >>> _surplus_rows(nn.Conv2d(3, 64, 7, stride=2), first=True), _surplus_rows(nn.Conv2d(3, 32, 3, 2), first=True)
    (3, 1)
    """
    if not isinstance(module, nn.Conv2d) or module.stride == (1, 1):
        return 0
    padded = first or module.groups > 1  # other strided convolutions have no padding layer
    return int(module.kernel_size[0]) // 2 if padded else 0


def _use(layer: _Layer, width: float) -> LayerUse:
    outputs, inputs, *kernel = layer.shape
    depthwise = inputs == 1 and not layer.first
    outputs = outputs if layer.last else channels(outputs, width)
    inputs = inputs if layer.first or depthwise else channels(inputs, width)
    return LayerUse(
        name=layer.name,
        kind="conv" if kernel else "linear",
        parameter=layer.parameter,
        weights=outputs * inputs * prod(kernel),
        channels=1 if depthwise else outputs,
        positions=layer.side**2,
        input_gradient=not layer.first,
    )
