"""Rules for operations that move channels: views, permutations, splits, joins."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.fx_tracing import argument, written_sizes
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Source, joined
from rigl_compress.pruning.channelwise_rules import pass_need
from rigl_compress.pruning.elementwise_rules import combined
from rigl_compress.pruning.traced_graph import shape
from rigl_compress.pruning.weighted_layer_rules import pinned

# Views: the shapes alone determine where the channels are afterwards.


def _view(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    place = _place(x.axis, shape(node.args[0]), shape(node))
    sizes = () if node.op == "call_module" or node.target in _FLATTENS else written_sizes(node)
    if place is None or any(isinstance(size, torch.dtype) for size in sizes):
        return analysis.mark_opaque(node, "reshapes channels in an unsupported way")
    if sizes:
        analysis.resizes[node] = place.axis
    return x.repeated(place.times, place.axis) if place.in_a_row else x.tiled(place.times, place.axis)


_FLATTENS = ("flatten", torch.flatten)


@dataclass(frozen=True)
class Place:
    """Where channels are after a view: each of them `times` times in a row, or all of them `times` times."""

    axis: int
    times: int
    in_a_row: bool


def _place(axis: int, before: tuple[int, ...], after: tuple[int, ...]) -> Place | None:
    """Find the axis that holds the channels after a view: whole, or merged with axes behind or ahead of it.

    >>> _place(1, (2, 3, 4, 4), (2, 48)), _place(2, (2, 5, 3), (10, 3)), _place(1, (2, 6), (2, 3, 2))
    (Place(axis=1, times=16, in_a_row=True), Place(axis=1, times=1, in_a_row=True), None)
    """
    ahead, count, behind = prod(before[:axis]), before[axis], prod(before[axis + 1 :])
    for place in sorted(range(len(after)), key=lambda place: abs(place - axis)):
        head, times, tail = prod(after[:place]), after[place] // count, prod(after[place + 1 :])
        if after[place] != times * count:
            continue
        if head == ahead and times * tail == behind:
            return Place(place, times, True)
        if head * times == ahead and tail == behind:
            return Place(place, times, False)
    return None


def _view_need(node: fx.Node, analysis: Analysis) -> None:
    source = analysis.channels(node.args[0])
    place = _place(source.axis, shape(node.args[0]), shape(node)) if source else None
    if place is not None:
        axis, counts = (1, (-1, place.times)) if place.in_a_row else (0, (place.times, -1))
        analysis.need(node.args[0], analysis.needed(node).reshape(counts).any(dim=axis))


def _expand(node: fx.Node, analysis: Analysis) -> Fact:
    x, (before, after) = analysis.fact(node.args[0]), (shape(node.args[0]), shape(node))
    if not isinstance(x, Channels):
        return x
    axis = x.axis + len(after) - len(before)
    if after[axis] != before[x.axis]:
        return analysis.mark_opaque(node, "repeats channels")
    analysis.resizes[node] = axis
    return x.along(axis)


def _expand_as(node: fx.Node, analysis: Analysis) -> Fact:
    x, like = analysis.fact(node.args[0]), analysis.fact(argument(node, 1, "other"))
    if not isinstance(x, Channels) or not isinstance(like, Channels):
        return analysis.mark_opaque(node, "takes the shape of another value") if isinstance(x, Channels) or like else x
    if len(x.units) != len(like.units) or x.axis != like.axis or len(shape(node.args[0])) != len(shape(node)):
        return analysis.mark_opaque(node, "repeats channels")
    analysis.units.couple(x.units, like.units)
    return x


# Operations that add, remove and permute axes.


def _permute(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    rank = len(shape(node))
    dims: Any = argument(node, 1, "dims", default=())
    order: Any = dims if isinstance(dims, tuple | list) else node.args[1:]
    return x.along([dim % rank for dim in order].index(x.axis))


def _transpose(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    one, other = (argument(node, place + 1, f"dim{place}") % len(shape(node)) for place in range(2))
    return x.along({one: other, other: one}.get(x.axis, x.axis))


def _squeeze(node: fx.Node, analysis: Analysis) -> Fact:
    x, dim = analysis.fact(node.args[0]), argument(node, 1, "dim")
    if not isinstance(x, Channels):
        return x
    before = shape(node.args[0])
    if not isinstance(dim, int) or dim % len(before) == x.axis:
        return analysis.mark_opaque(node, "would also squeeze a single channel")
    gone = before[dim] == 1 and dim % len(before) < x.axis
    return x.along(x.axis - int(gone))


def _unsqueeze(node: fx.Node, analysis: Analysis) -> Fact:
    x, dim = analysis.fact(node.args[0]), argument(node, 1, "dim")
    return x.along(x.axis + int(dim % len(shape(node)) <= x.axis)) if isinstance(x, Channels) else x


# Splits and joins


def _split(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    dim, pieces = argument(node, 2, "dim", default=0), argument(node, 1, "chunks", "split_size", _SECTIONS)
    if len(node.all_input_nodes) > 1 or dim % len(shape(node.args[0])) != x.axis:
        return analysis.mark_opaque(node, "splits along another axis than that of the channels")
    positions = torch.arange(len(x.units))
    analysis.splits.append(node)
    chunks = node.target in ("chunk", torch.chunk)
    return tuple(x.picked(part) for part in (positions.chunk(pieces) if chunks else torch.split(positions, pieces)))


_SECTIONS = "split_size_or_sections"


def _split_need(node: fx.Node, analysis: Analysis) -> None:
    if analysis.tracked(node):
        analysis.need(node.args[0], torch.cat(analysis.needs[node]))


def _cat(node: fx.Node, analysis: Analysis) -> Fact:
    values: Any = node.args[0]
    dim = argument(node, 1, "dim", "axis", default=0) % len(shape(node))
    facts = [analysis.fact(value) for value in values] if isinstance(values, tuple | list) else []
    tracked = [fact for fact in facts if isinstance(fact, Channels)]
    others = [fact for fact in facts if not isinstance(fact, Channels | Source)]
    if not tracked or others or any(fact.axis != tracked[0].axis for fact in tracked):
        return analysis.mark_opaque(node, "joins values whose channels are not all known")
    if dim == tracked[0].axis:
        return joined([_as_channels(value, analysis, dim) for value in values], dim)
    if len(tracked) < len(facts):
        return analysis.mark_opaque(node, "joins values whose channels are not all known")
    return combined(tracked, analysis, _same)


def _as_channels(value: Any, analysis: Analysis, axis: int) -> Channels:
    """Return the channels of a value; those of the network's input, or of an operation without a rule, always stay."""
    found = analysis.channels(value)
    return pinned(value, analysis, axis, shape(value)[axis]) if found is None else found


def _same(one: Tensor, other: Tensor) -> Tensor:
    return torch.where(one == other, one, torch.nan)


def _cat_need(node: fx.Node, analysis: Analysis) -> None:
    values: Any = node.args[0]
    if not analysis.tracked(node):
        return
    axis = analysis.outputs(node).axis
    counts = [shape(value)[axis] for value in values]
    along_channels = sum(counts) == len(analysis.needed(node))
    whole = analysis.needed(node)
    needs = torch.split_with_sizes(whole, counts) if along_channels else [whole] * len(counts)
    for value, needed in zip(values, needs, strict=True):
        analysis.need(value, needed)


VIEW = Rule(_view, _view_need)
EXPAND = Rule(_expand, pass_need)
EXPAND_AS = Rule(_expand_as, pass_need, several=True)
PERMUTE = Rule(_permute, pass_need)
TRANSPOSE = Rule(_transpose, pass_need)
SQUEEZE = Rule(_squeeze, pass_need)
UNSQUEEZE = Rule(_unsqueeze, pass_need)
SPLIT = Rule(_split, _split_need)
CAT = Rule(_cat, _cat_need, several=True)
