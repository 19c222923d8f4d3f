"""ImageNet networks as the authors of the paper count them, with the quirks of their counter.

- A convolution whose input is padded by a layer of its own is taken for a `same` convolution of the padded image: the
  first layers and the strided depth-wise ones have a row and a column of outputs too many, ResNet-50's first three.
- A depth-wise convolution is taken for an ordinary one with a single output channel: it has one bias, and one ReLU at
  each place, instead of one per channel. (In Keras it is a subclass of the ordinary one.)
- Widths scale the inputs and the outputs of each layer by themselves, rounding down.
- Layer densities are those of the network of width 1, whatever the width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isqrt, prod

import torch
from torch import nn

from rigl_compress.exporters.sizes import layer_bytes
from rigl_compress.models.convolutions import channels
from rigl_compress.models.flops import layer_uses
from rigl_compress.models.layer_costs import FlopReport, LayerUse, flop_report
from rigl_compress.models.networks import ModelSpec
from rigl_compress.pipeline.train.config import SparsityConfig

CONVENTION = "micronet"


@dataclass(frozen=True)
class Counted:
    """A network of the paper, at some densities by layer and some width, as its authors count it."""

    network: str
    densities: Mapping[str, float]
    width: float = 1.0

    @property
    def report(self) -> FlopReport:
        """The forward pass of one image."""
        uses = [_use(layer, self.width) for layer in _layers(self.network)]
        return flop_report(uses, {use.parameter: self._alive(use) for use in uses}, CONVENTION)

    @property
    def ratio(self) -> float:
        """The FLOPs as a share of those of the dense network of width 1."""
        return self.report.sparse / Counted(self.network, {}).report.dense

    @property
    def megabytes(self) -> float:
        """The size with a bit-mask for every sparse layer; every layer has biases."""
        rows = self.report.layers
        return sum(layer_bytes(row.weights, row.nonzeros, row.channels) for row in rows) / 1e6

    @property
    def sparsity(self) -> float:
        """The share of zeros among all weights."""
        return 1 - self.report.density

    def _alive(self, use: LayerUse) -> float:
        return self.densities.get(use.parameter, 1.0) * use.weights


def dense(network: str, width: float = 1.0) -> Counted:
    """Give the dense network.

    >>> dense("mobilenet-v1").report.dense, round(dense("resnet-50").report.dense / 1e9, 4)
    (1141543864, 8.2023)
    """
    return Counted(network, {}, width)


def sparse(network: str, sparsity: SparsityConfig, width: float = 1.0) -> Counted:
    """Give the network with its connections shared out."""
    return Counted(network, sparsity.densities(_built(network)), width)


@dataclass(frozen=True)
class _Layer:
    """A layer as the counter sees it: its weight's shape (outputs, inputs, kernel), and the side of its output."""

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
            isqrt(use.positions) + _rows_too_many(model.get_submodule(use.name), first=use is uses[0]),
            use is uses[0],
            use is uses[-1],
        )
        for use in uses
    )


def _rows_too_many(module: nn.Module, *, first: bool) -> int:
    """Count the outputs that a `same` convolution of the already padded image would have too many.

    >>> _rows_too_many(nn.Conv2d(3, 64, 7, stride=2), first=True), _rows_too_many(nn.Conv2d(3, 32, 3, 2), first=True)
    (3, 1)
    """
    if not isinstance(module, nn.Conv2d) or module.stride == (1, 1):
        return 0
    padded = first or module.groups > 1  # the other strided ones are padded by themselves
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
