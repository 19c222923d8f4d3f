"""The rule of gated linear units: the first half of the channels times the sigmoid of the second."""

from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.fx_tracing import argument
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact
from rigl_compress.pruning.traced_graph import shape


def _glu(node: fx.Node, analysis: Analysis) -> Fact:
    """Couple each channel with its gate; along another axis, the gate is another position of the same channel."""
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    if _dim(node, analysis) != x.axis:
        return x.with_constant(_gated(x.constant, x.constant))
    (values, gates), (one, other) = x.units.chunk(2), x.constant.chunk(2)
    analysis.units.couple(values, gates)
    return Channels(x.axis, values, one).with_constant(_gated(one, other))


def _gated(value: Tensor, gate: Tensor) -> Tensor:
    return torch.where(value == 0, 0.0, value * torch.sigmoid(gate))  # zero, whatever its gate is


def _dim(node: fx.Node, analysis: Analysis) -> int:
    dim: Any = analysis.module(node).dim if node.op == "call_module" else argument(node, 1, "dim", default=-1)
    return int(dim) % len(shape(node.args[0]))


def _need(node: fx.Node, analysis: Analysis) -> None:
    x = analysis.channels(node.args[0])
    if x is None or not analysis.tracked(node):
        return
    needed = analysis.needed(node)
    if _dim(node, analysis) != x.axis:
        analysis.need(node.args[0], needed)
    else:
        analysis.need(node.args[0], torch.cat([needed, needed & ~(x.constant.chunk(2)[0] == 0)]))


GLU = Rule(_glu, _need)
