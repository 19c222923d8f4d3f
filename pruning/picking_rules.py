"""Rules for operations that pick parts of a value: indices, slices and lists of channels, `narrow`, `index_select`."""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.fx_tracing import argument
from rigl_compress.models.literal_picks import NARROW, SELECT, is_range, steps_of
from rigl_compress.pruning.analysis import Analysis, Rule, parts
from rigl_compress.pruning.channel_facts import Channels, Fact
from rigl_compress.pruning.traced_graph import shape

_WHOLE = slice(None)


def _getitem(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if isinstance(x, tuple):
        return _part(node, analysis, x)
    if not isinstance(x, Channels):
        return x
    steps = _steps(steps_of(node), len(shape(node.args[0])))
    found = None if steps is None else _channel_step(steps, x.axis)
    if steps is None or found is None:
        return analysis.mark_opaque(node, "picks channels in an unsupported way")
    axis, step = found
    picked = _positions(step, len(x.units))
    if not picked or _moves_axis(steps):
        return analysis.mark_opaque(node, "picks channels in an unsupported way")
    return x.along(axis) if step == _WHOLE else _picked(node, analysis, x.along(axis), picked)


def _moves_axis(steps: tuple[Any, ...]) -> bool:
    """Whether lists come with numbers, or with other lists: then axes can change places."""
    lists = [step for step in steps if isinstance(step, list)]
    return len(lists) > 1 or (bool(lists) and any(isinstance(step, int) for step in steps))


def _part(node: fx.Node, analysis: Analysis, x: tuple[Fact, ...]) -> Fact:
    """Return a part of a split, or the state of a cell: state[-1] or state[-1, :, :]."""
    place = _place_of_part(node)
    return analysis.mark_opaque(node, "picks parts in an unsupported way") if place is None else x[place]


def _place_of_part(node: fx.Node) -> int | None:
    index: Any = node.args[1]
    first, *rest = index if isinstance(index, tuple) else (index,)
    return first if isinstance(first, int) and all(step == _WHOLE for step in rest) else None


def _steps(steps: tuple[Any, ...], rank: int) -> tuple[Any, ...] | None:
    """Return an index with a step for every axis, numbers in place of computed bounds; None if it has other steps."""
    used = sum(step is not None and step is not Ellipsis for step in steps)
    place = next((place for place, step in enumerate(steps) if step is Ellipsis), len(steps))
    full = tuple(map(_known, (*steps[:place], *[_WHOLE] * (rank - used), *steps[place + 1 :])))
    supported = all(step is None or isinstance(step, int | slice | list) for step in full)
    return full if supported and not any(isinstance(step, bool) for step in full) else None


def _known(step: Any) -> Any:
    if isinstance(step, slice):
        return slice(*(_number(bound) for bound in (step.start, step.stop, step.step)))
    return list(step) if isinstance(step, tuple | list) else step


def _number(bound: Any) -> Any:
    return bound.meta["value"] if isinstance(bound, fx.Node) else bound


def _channel_step(steps: tuple[Any, ...], axis: int) -> tuple[int, Any] | None:
    """Return the axis of the channels after x[0, :, None], and what is picked of them; None for a single channel.

    >>> _channel_step((0, slice(None), None, slice(2, 4)), 2)
    (2, slice(2, 4, None))
    """
    after = 0
    for step in steps:
        if step is not None and axis == 0:
            return None if isinstance(step, int) else (after, step)
        axis -= step is not None
        after += not isinstance(step, int)
    return None


def _positions(step: Any, count: int) -> tuple[int, ...]:
    channels = range(count)
    if isinstance(step, slice):
        return tuple(channels[step])
    whole = all(isinstance(place, int) and not isinstance(place, bool) for place in step)
    return tuple(channels[place] for place in step) if whole else ()


def _picked(node: fx.Node, analysis: Analysis, x: Channels, positions: tuple[int, ...]) -> Channels:
    analysis.picks[node] = positions
    return x.picked(torch.tensor(positions))


def _getitem_need(node: fx.Node, analysis: Analysis) -> None:
    x = analysis.fact(node.args[0])
    if not analysis.tracked(node):
        return
    if isinstance(x, tuple):
        place = _place_of_part(node)
        assert place is not None
        first = len(parts(x[: place % len(x)]))
        for number, needed in enumerate(analysis.needs[node]):
            analysis.need(node.args[0], needed, first + number)
    elif node in analysis.picks:
        _need_picked(node, analysis)
    else:
        analysis.need(node.args[0], analysis.needed(node))


def _need_picked(node: fx.Node, analysis: Analysis) -> None:
    source = analysis.channels(node.args[0])
    if source is not None and node in analysis.picks:
        positions = torch.tensor(analysis.picks[node])
        needed = torch.zeros(len(source.units), dtype=torch.bool)
        needed[positions[analysis.needed(node)]] = True
        analysis.need(node.args[0], needed)
    elif analysis.tracked(node):
        analysis.need(node.args[0], analysis.needed(node))


# narrow and index_select


def _narrow(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    start, length = (_number(argument(node, place, name)) for place, name in ((2, "start"), (3, "length")))
    if not isinstance(x, Channels) or _dim(node) != x.axis:
        return x
    if not isinstance(start, int) or not isinstance(length, int):
        return analysis.mark_opaque(node, "picks channels in an unsupported way")
    first = start % len(x.units)
    return _picked(node, analysis, x, tuple(range(first, first + length)))


def _index_select(node: fx.Node, analysis: Analysis) -> Fact:
    x, index = analysis.fact(node.args[0]), argument(node, 2, "index")
    if not isinstance(x, Channels):
        return x
    stored = _stored(index, analysis)
    if stored is None and _dim(node) != x.axis and len(node.all_input_nodes) == 2:
        return x if not analysis.tracked(index) else analysis.mark_opaque(node, "picks by computed positions")
    if _dim(node) != x.axis:
        return x
    if stored is None or not len(stored):
        return analysis.mark_opaque(node, "picks channels by computed positions")
    return _picked(node, analysis, x, tuple(stored.tolist()))


def _stored(index: Any, analysis: Analysis) -> Tensor | None:
    """Return an index that is a buffer of the network."""
    if not isinstance(index, fx.Node) or index.op != "get_attr":
        return None
    found: Any = operator.attrgetter(str(index.target))(analysis.graph)
    return found.detach().cpu() if isinstance(found, Tensor) and not isinstance(found, torch.nn.Parameter) else None


def _dim(node: fx.Node) -> int:
    dim: Any = argument(node, 1, "dim")
    return int(dim) % len(shape(node.args[0]))


# The plan


def picked_after(node: fx.Node, analysis: Analysis) -> tuple[int, ...]:
    """Return the new numbers of a pick, or () if nothing of its source is removed."""
    source = analysis.channels(node.args[0])
    assert source is not None
    kept = analysis.units.pinned(source.units)
    if kept.all():
        return ()
    positions = torch.tensor(analysis.picks[node])
    new = (kept.cumsum(0) - 1)[positions[kept[positions]]].tolist()
    place = _place_in_index(node, source.axis)
    return (place, new[0], new[-1] + 1) if is_range(steps_of(node)[place]) else (place, *new)


def _place_in_index(node: fx.Node, axis: int) -> int:
    """Return which step of an index is that of the channels."""
    steps, rank = steps_of(node), len(shape(node.args[0]))
    used, at = sum(step is not None and step is not Ellipsis for step in steps), 0
    for place, step in enumerate(steps):
        if step is not None and step is not Ellipsis and at == axis:
            return place
        at += rank - used if step is Ellipsis else step is not None
    raise AssertionError("an index without a step for the channels picks none of them")


GETITEM = Rule(_getitem, _getitem_need, several=True)
NARROW_RULE = Rule(_narrow, _need_picked)
INDEX_SELECT = Rule(_index_select, _need_picked)
PICKS: dict[Any, Rule] = {**dict.fromkeys(NARROW, NARROW_RULE), **dict.fromkeys(SELECT, INDEX_SELECT)}
