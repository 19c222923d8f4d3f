"""Rules for two values combined channel by channel: residual sums, gates."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Tracked
from rigl_compress.pruning.traced_graph import shape

Combine = Callable[[Tensor, Tensor], Tensor]


def _product(one: Tensor, other: Tensor) -> Tensor:
    return torch.where((one == 0) | (other == 0), 0.0, one * other)  # zero times an unknown value is zero


COMBINE: dict[Any, Combine] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), torch.add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), torch.sub),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), _product),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, "div", "div_"), torch.div),
    **dict.fromkeys((torch.maximum, torch.max, "maximum", "max"), torch.maximum),
    **dict.fromkeys((torch.minimum, torch.min, "minimum", "min"), torch.minimum),
}


def combined(parts: list[Channels], analysis: Analysis, combine: Combine) -> Channels:
    """Combine values channel by channel: their units are coupled."""
    analysis.units.couple(*(part.units for part in parts))
    constant = parts[0].constant
    for part in parts[1:]:
        constant = combine(constant, part.constant)
    return parts[0].with_constant(constant)


def _binary(node: fx.Node, analysis: Analysis) -> Fact:
    if node.kwargs or len(node.args) != 2 or node.meta["shape"] is None:
        return analysis.mark_opaque(node, "combines values in an unsupported way")
    combine, sides = COMBINE[node.target], [analysis.fact(argument) for argument in node.args]
    if not all(isinstance(argument, fx.Node) for argument in node.args):
        return with_number(node, combine, next((side for side in sides if side is not None), None))
    one, other = sides
    if not isinstance(one, Channels) or not isinstance(other, Channels) or len(one.units) != len(other.units):
        return _with_unknown(node, analysis)
    if one.axis != other.axis or len({len(shape(argument)) for argument in node.args}) > 1:
        return analysis.mark_opaque(node, "combines values whose channels lie along different axes")
    return combined([one, other], analysis, combine)


def _with_unknown(node: fx.Node, analysis: Analysis) -> Fact:
    """Keep everything; channels that keep their shape are still channels, so that sums with them can be followed."""
    found = analysis.mark_opaque(node, "combines values whose channels are not all known")
    tensors = [side for side in node.args if shape(side) is not None]
    same = [fact for side in tensors if (fact := analysis.channels(side)) and shape(side) == shape(node)]
    return same[0].unknown() if same and len(tensors) == len(node.args) else found


def with_number(node: fx.Node, combine: Combine, x: Fact) -> Fact:
    """Combine each channel of a value with a number."""
    if not isinstance(x, Tracked):
        return x
    sides: list[Any] = [x.constant if isinstance(side, fx.Node) else side for side in node.args]
    one, other = (side if isinstance(side, Tensor) else torch.full_like(x.constant, side) for side in sides)
    return x.with_constant(combine(one, other))


def _binary_need(node: fx.Node, analysis: Analysis) -> None:
    if not analysis.tracked(node):
        return
    needed = analysis.needed(node)
    for argument, other in zip(node.args, reversed(node.args), strict=True):
        factor = analysis.channels(other) if COMBINE[node.target] is _product else None
        analysis.need(argument, needed if factor is None else needed & ~(factor.constant == 0))


BINARY = Rule(_binary, _binary_need, several=True)
