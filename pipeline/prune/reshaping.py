"""Rules for operations that put channels elsewhere: views, permutations, splits, joins."""

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.tracing import argument, written_sizes
from rigl_compress.pipeline.prune.analysis import Analysis, Rule
from rigl_compress.pipeline.prune.channelwise import pass_need
from rigl_compress.pipeline.prune.combining import together
from rigl_compress.pipeline.prune.facts import Channels, Fact, joined
from rigl_compress.pipeline.prune.graph import shape

# Views: where the channels are afterwards follows from the shapes alone.


def _view(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    place = _place(x.axis, shape(node.args[0]), shape(node))
    sizes = () if node.op == "call_module" or node.target in _FLATTENS else written_sizes(node)
    if place is None or any(isinstance(size, torch.dtype) for size in sizes):
        return found.give_up(node, "reshapes channels in a way that is not followed")
    if sizes:
        found.resizes[node] = place.axis
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


def _view_need(node: fx.Node, found: Analysis) -> None:
    source = found.channels(node.args[0])
    place = _place(source.axis, shape(node.args[0]), shape(node)) if source else None
    if place is not None:
        axis, counts = (1, (-1, place.times)) if place.in_a_row else (0, (place.times, -1))
        found.need(node.args[0], found.needed(node).reshape(counts).any(dim=axis))


def _expand(node: fx.Node, found: Analysis) -> Fact:
    x, (before, after) = found.fact(node.args[0]), (shape(node.args[0]), shape(node))
    if not isinstance(x, Channels):
        return x
    axis = x.axis + len(after) - len(before)
    if after[axis] != before[x.axis]:
        return found.give_up(node, "repeats channels")
    found.resizes[node] = axis
    return x.along(axis)


def _expand_as(node: fx.Node, found: Analysis) -> Fact:
    x, like = found.fact(node.args[0]), found.fact(argument(node, 1, "other"))
    if not isinstance(x, Channels) or not isinstance(like, Channels):
        return found.give_up(node, "takes the shape of another value") if isinstance(x, Channels) or like else x
    if len(x.units) != len(like.units) or x.axis != like.axis or len(shape(node.args[0])) != len(shape(node)):
        return found.give_up(node, "repeats channels")
    found.units.couple(x.units, like.units)
    return x


# Axes come, go and change places.


def _permute(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    rank = len(shape(node))
    dims: Any = argument(node, 1, "dims", default=())
    order: Any = dims if isinstance(dims, tuple | list) else node.args[1:]
    return x.along([dim % rank for dim in order].index(x.axis))


def _transpose(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    one, other = (argument(node, place + 1, f"dim{place}") % len(shape(node)) for place in range(2))
    return x.along({one: other, other: one}.get(x.axis, x.axis))


def _squeeze(node: fx.Node, found: Analysis) -> Fact:
    x, dim = found.fact(node.args[0]), argument(node, 1, "dim")
    if not isinstance(x, Channels):
        return x
    before = shape(node.args[0])
    if not isinstance(dim, int) or dim % len(before) == x.axis:
        return found.give_up(node, "would also squeeze a single channel")
    gone = before[dim] == 1 and dim % len(before) < x.axis
    return x.along(x.axis - int(gone))


def _unsqueeze(node: fx.Node, found: Analysis) -> Fact:
    x, dim = found.fact(node.args[0]), argument(node, 1, "dim")
    return x.along(x.axis + int(dim % len(shape(node)) <= x.axis)) if isinstance(x, Channels) else x


def _getitem(node: fx.Node, found: Analysis) -> Fact:
    x, index = found.fact(node.args[0]), node.args[1]
    if isinstance(x, tuple):
        return x[index] if isinstance(index, int) else found.give_up(node, "picks parts in a way that is not followed")
    if not isinstance(x, Channels):
        return x
    axis = _axis_after(index if isinstance(index, tuple) else (index,), x.axis, len(shape(node.args[0])))
    return found.give_up(node, "picks channels") if axis is None else x.along(axis)


def _axis_after(steps: tuple[Any, ...], axis: int, rank: int) -> int | None:
    """Follow the channels' axis through x[0, :, None]; None if some of them are picked."""
    whole, used = slice(None), sum(step is not None and step is not Ellipsis for step in steps)
    if not all(step is None or step is Ellipsis or isinstance(step, int | slice) for step in steps):
        return None
    place = next((place for place, step in enumerate(steps) if step is Ellipsis), len(steps))
    steps = (*steps[:place], *[whole] * (rank - used), *steps[place + 1 :])
    after = 0
    for step in steps:
        if step is not None and axis == 0:
            return after if step == whole else None
        axis -= step is not None
        after += not isinstance(step, int)
    return None


def _getitem_need(node: fx.Node, found: Analysis) -> None:
    if found.tracked(node):
        index = node.args[1]
        part = index if isinstance(found.fact(node.args[0]), tuple) and isinstance(index, int) else 0
        found.need(node.args[0], found.needed(node), part)


# Splits and joins


def _split(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    dim, pieces = argument(node, 2, "dim", default=0), argument(node, 1, "chunks", "split_size", _SECTIONS)
    if len(node.all_input_nodes) > 1 or dim % len(shape(node.args[0])) != x.axis:
        return found.give_up(node, "splits along another axis than that of the channels")
    places = torch.arange(len(x.units))
    found.splits.append(node)
    chunks = node.target in ("chunk", torch.chunk)
    return tuple(x.picked(part) for part in (places.chunk(pieces) if chunks else torch.split(places, pieces)))


_SECTIONS = "split_size_or_sections"


def _split_need(node: fx.Node, found: Analysis) -> None:
    if found.tracked(node):
        found.need(node.args[0], torch.cat(found.needs[node]))


def _cat(node: fx.Node, found: Analysis) -> Fact:
    values, dim = node.args[0], argument(node, 1, "dim", "axis", default=0) % len(shape(node))
    facts = [found.fact(value) for value in values] if isinstance(values, tuple | list) else []
    tracked = [fact for fact in facts if isinstance(fact, Channels)]
    if not tracked or len(tracked) < len(facts) or any(fact.axis != tracked[0].axis for fact in tracked):
        return found.give_up(node, "joins values whose channels are not all known")
    return joined(tracked, dim) if dim == tracked[0].axis else together(tracked, found, _same)


def _same(one: Tensor, other: Tensor) -> Tensor:
    return torch.where(one == other, one, torch.nan)


def _cat_need(node: fx.Node, found: Analysis) -> None:
    values: Any = node.args[0]
    if not found.tracked(node):
        return
    counts = [len(found.outputs(value).units) for value in values]
    along_channels = sum(counts) == len(found.needed(node))
    whole = found.needed(node)
    needs = torch.split_with_sizes(whole, counts) if along_channels else [whole] * len(counts)
    for value, needed in zip(values, needs, strict=True):
        found.need(value, needed)


VIEW = Rule(_view, _view_need)
EXPAND = Rule(_expand, pass_need)
EXPAND_AS = Rule(_expand_as, pass_need, several=True)
PERMUTE = Rule(_permute, pass_need)
TRANSPOSE = Rule(_transpose, pass_need)
SQUEEZE = Rule(_squeeze, pass_need)
UNSQUEEZE = Rule(_unsqueeze, pass_need)
GETITEM = Rule(_getitem, _getitem_need, several=True)
SPLIT = Rule(_split, _split_need)
CAT = Rule(_cat, _cat_need, several=True)
