"""Rules for two values combined channel by channel: residual sums, gates."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.pipeline.prune.analysis import Analysis, Rule
from rigl_compress.pipeline.prune.facts import Channels, Fact
from rigl_compress.pipeline.prune.graph import shape

Combine = Callable[[Tensor, Tensor], Tensor]


def _product(one: Tensor, other: Tensor) -> Tensor:
    return torch.where((one == 0) | (other == 0), 0.0, one * other)  # nothing times anything is nothing


COMBINE: dict[Any, Combine] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), torch.add),
    **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), torch.sub),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), _product),
    **dict.fromkeys((operator.truediv, operator.itruediv, torch.div, "div", "div_"), torch.div),
    **dict.fromkeys((torch.maximum, torch.max, "maximum", "max"), torch.maximum),
    **dict.fromkeys((torch.minimum, torch.min, "minimum", "min"), torch.minimum),
}


def together(parts: list[Channels], found: Analysis, combine: Combine) -> Channels:
    """Values combined channel by channel: their units stay or go together."""
    found.units.couple(*(part.units for part in parts))
    constant = parts[0].constant
    for part in parts[1:]:
        constant = combine(constant, part.constant)
    return parts[0].with_constant(constant)


def _binary(node: fx.Node, found: Analysis) -> Fact:
    if node.kwargs or len(node.args) != 2 or node.meta["shape"] is None:
        return found.give_up(node, "combines values in a way that is not followed")
    combine, sides = COMBINE[node.target], [found.fact(argument) for argument in node.args]
    if not all(isinstance(argument, fx.Node) for argument in node.args):
        return _with_number(node, combine, next((side for side in sides if side is not None), None))
    one, other = sides
    if not isinstance(one, Channels) or not isinstance(other, Channels) or len(one.units) != len(other.units):
        return found.give_up(node, "combines values whose channels are not all known")
    if one.axis != other.axis or len({len(shape(argument)) for argument in node.args}) > 1:
        return found.give_up(node, "combines values whose channels lie along different axes")
    return together([one, other], found, combine)


def _with_number(node: fx.Node, combine: Combine, x: Fact) -> Fact:
    if not isinstance(x, Channels):
        return x
    sides: list[Any] = [x.constant if isinstance(side, fx.Node) else side for side in node.args]
    one, other = (side if isinstance(side, Tensor) else torch.full_like(x.constant, side) for side in sides)
    return x.with_constant(combine(one, other))


def _binary_need(node: fx.Node, found: Analysis) -> None:
    if not found.tracked(node):
        return
    needed = found.needed(node)
    for argument, other in zip(node.args, reversed(node.args), strict=True):
        silenced = found.channels(other) if COMBINE[node.target] is _product else None
        found.need(argument, needed if silenced is None else needed & ~(silenced.constant == 0))


BINARY = Rule(_binary, _binary_need, several=True)
