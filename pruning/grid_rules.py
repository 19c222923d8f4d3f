"""Rules for values whose channels lie along several axes: views into heads and back, and what is done to each head.

Operations that only move values are run on the numbers of the channels: the result shows where each of them is.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.fx_tracing import argument, written_sizes
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Grid, Tracked, axes_of
from rigl_compress.pruning.channelwise_rules import pass_need
from rigl_compress.pruning.elementwise_rules import COMBINE, with_number
from rigl_compress.pruning.reshaping_rules import VIEW
from rigl_compress.pruning.traced_graph import plain_value, shape


def _moved(node: fx.Node, analysis: Analysis) -> Fact:
    """Follow channels through an operation that only moves values."""
    x = analysis.fact(node.args[0])
    if not isinstance(x, Tracked):
        return x
    if any(shape(source) is not None for source in node.all_input_nodes[1:]):
        return analysis.mark_opaque(node, "takes several values")
    try:
        after = _run(node, analysis, _numbered(x, shape(node.args[0])))
    except (RuntimeError, TypeError, ValueError, IndexError):
        return analysis.mark_opaque(node, "moves channels in an unsupported way")
    pieces = after if isinstance(after, tuple | list) else (after,)
    placed = [_placed(piece) for piece in pieces]
    analysis.moves[node] = tuple(numbers for _, numbers in placed)
    _keep_picked_axes(node, x, analysis)
    found = tuple(_picked(x, axes, numbers) for axes, numbers in placed)
    if isinstance(found[0], Channels) and node.target in _SIZED:
        analysis.resizes[node] = found[0].axis
    if isinstance(found[0], Grid) and node.target in (*_SIZED, *_UNFLATTENS):
        analysis.grid_resizes[node] = tuple(axis - _first_axis(node) for axis in found[0].axes)
    return found if isinstance(after, tuple | list) else found[0]


_SIZED = ("view", "reshape", torch.reshape, "expand")
_UNFLATTENS = ("unflatten", torch.unflatten)


def _first_axis(node: fx.Node) -> int:
    """Return the axis of the first size that is written: an unflatten has only those of the axes it makes."""
    rank = len(shape(node.args[0]))
    return int(argument(node, 1, "dim")) % rank if node.target in _UNFLATTENS else 0


def _numbered(x: Tracked, sizes: tuple[int, ...]) -> Tensor:
    """Return a value of these sizes that has the number of a channel everywhere."""
    view = [size if axis in axes_of(x) else 1 for axis, size in enumerate(sizes)]
    return torch.arange(x.units.numel()).reshape(view).expand(sizes).contiguous()


def _run(node: fx.Node, analysis: Analysis, value: Tensor) -> Any:
    args, kwargs = fx.map_arg((node.args[1:], node.kwargs), plain_value)
    if node.op == "call_module":
        return analysis.module(node)(value)
    if node.op == "call_method":
        return getattr(value, "reshape" if node.target == "view" else str(node.target))(*args, **kwargs)
    function: Any = node.target
    return function(value, *args, **kwargs)


def _placed(numbers: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """Return the axes along which the channels differ, and the numbers along these axes alone.

    >>> _placed(torch.tensor([[[0, 1], [2, 3]]] * 4))
    ((1, 2), tensor([[0, 1],
            [2, 3]]))
    """
    axes = tuple(axis for axis in range(numbers.dim()) if bool((numbers != numbers.narrow(axis, 0, 1)).any()))
    return axes, numbers[tuple(slice(None) if axis in axes else 0 for axis in range(numbers.dim()))]


def _picked(x: Tracked, axes: tuple[int, ...], numbers: Tensor) -> Tracked:
    units, constant = x.units.flatten()[numbers], x.constant.flatten()[numbers]
    scores = isinstance(x, Grid) and x.units.dim() < 2
    return Channels(axes[0], units, constant) if len(axes) == 1 and not scores else Grid(axes, units, constant)


def _keep_picked_axes(node: fx.Node, x: Tracked, analysis: Analysis) -> None:
    """Keep axes whole where an operation picks or splits: the positions of what it picks are written in the code."""
    for numbers in analysis.moves[node]:
        positions = torch.unravel_index(numbers.flatten(), x.units.shape)
        picked = [axis for axis, each in enumerate(positions) if len({*each.tolist()}) < x.units.shape[axis]]
        if picked:
            analysis.whole.append((node, x.units, tuple(picked)))


def _moved_need(node: fx.Node, analysis: Analysis) -> None:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Tracked) or node not in analysis.moves:
        return
    for needed, numbers in zip(analysis.needs[node], analysis.moves[node], strict=True):
        wanted = torch.zeros(x.units.numel(), dtype=torch.bool)
        wanted[numbers[needed]] = True
        analysis.need(node.args[0], wanted.reshape(x.units.shape))


def _viewed(node: fx.Node, analysis: Analysis) -> Fact:
    """Follow a view: along one axis as any other, or from one axis to several."""
    if _splits_channels(node, analysis):
        return _moved(node, analysis)
    fact = VIEW.forward(node, analysis)
    if node in analysis.resizes and node.target in _UNFLATTENS:
        place = analysis.resizes.pop(node) - _first_axis(node)
        analysis.resizes |= {node: place} if 0 <= place < len(written_sizes(node)) else {}
    return fact


def _viewed_need(node: fx.Node, analysis: Analysis) -> None:
    (_moved_need if node in analysis.moves else VIEW.backward)(node, analysis)


def _splits_channels(node: fx.Node, analysis: Analysis) -> bool:
    """Whether a view spreads the channels over several axes: [N, L, heads · features] → [N, L, heads, features]."""
    x, after = analysis.channels(node.args[0]), node.meta["shape"]
    if x is None or after is None or node.meta["dtype"] != node.args[0].meta["dtype"]:  # type: ignore[union-attr]
        return False
    before = shape(node.args[0])
    ahead, behind = prod(before[: x.axis]), prod(before[x.axis + 1 :])
    ranges = [(first, last) for first in range(len(after)) for last in range(first + 2, len(after) + 1)]
    return any(
        (prod(after[:first]), prod(after[last:])) == (ahead, behind) and 1 not in after[first:last]
        for first, last in ranges
    )


# Operations on each head


def _binary(node: fx.Node, analysis: Analysis) -> Fact:
    """Combine a grid with a number, another grid, or a value that is the same for all channels."""
    if node.kwargs or len(node.args) != 2 or node.meta["shape"] is None:
        return analysis.mark_opaque(node, "combines values in an unsupported way")
    facts, combine = [analysis.fact(side) for side in node.args], COMBINE[node.target]
    grids = [fact for fact in facts if isinstance(fact, Grid)]
    numbers = [side for side in node.args if not _is_tensor(side)]
    if len(grids) == 1 and numbers:
        return grids[0].unknown() if isinstance(numbers[0], fx.Node) else with_number(node, combine, grids[0])
    if len(grids) == 1:
        return _with_untracked(node, analysis)
    one, other = grids
    if one.axes != other.axes or one.units.shape != other.units.shape or _ranks(node) > 1:
        return analysis.mark_opaque(node, "combines values whose channels lie along different axes")
    analysis.units.couple(one.units, other.units)
    return one.with_constant(combine(one.constant, other.constant))


def _is_tensor(side: Any) -> bool:
    return isinstance(side, fx.Node) and side.meta["shape"] is not None


def _ranks(node: fx.Node) -> int:
    return len({len(shape(side)) for side in node.args})


def _with_untracked(node: fx.Node, analysis: Analysis) -> Fact:
    """Combine a grid with other tensors: axes along which these have more than one value lose nothing."""
    (place,) = (index for index, side in enumerate(node.args) if isinstance(analysis.fact(side), Grid))
    x, grid = node.args[place], analysis.fact(node.args[place])
    assert isinstance(grid, Grid)
    others = [side for side in node.all_input_nodes if side is not x and shape(side) is not None]
    if any(analysis.tracked(other) for other in others) or shape(node) != shape(x):
        return analysis.mark_opaque(node, "combines values whose channels are not all known")
    used = {axis for other in others for axis in _long_axes(other, len(shape(x)))}
    fixed = tuple(index for index, axis in enumerate(grid.axes) if axis in used)
    if fixed:
        analysis.whole.append((node, grid.units, fixed))
    return grid.unknown()


def _long_axes(node: fx.Node, rank: int) -> set[int]:
    sizes = shape(node)
    return {axis + rank - len(sizes) for axis, size in enumerate(sizes) if size > 1}


def _untracked_need(node: fx.Node, analysis: Analysis) -> None:
    if isinstance(analysis.fact(node), Grid):
        for source in node.all_input_nodes:
            if isinstance(analysis.fact(source), Grid):
                analysis.need(source, analysis.needed(node))


def _cast(node: fx.Node, analysis: Analysis) -> Fact:
    """A copy of another type or on another device has the same channels."""
    x = analysis.fact(node.args[0])
    if isinstance(x, Tracked) and any(_is_tensor(source) for source in node.all_input_nodes[1:]):
        return analysis.mark_opaque(node, "takes several values")
    if node.args[0] in analysis.weights:
        analysis.weights.add(node)
    return x


def _softmax(node: fx.Node, analysis: Analysis) -> Fact:
    """A softmax over keys turns the scores of each head into its weights."""
    x, last = analysis.fact(node.args[0]), len(shape(node)) - 1
    dim: Any = analysis.module(node).dim if node.op == "call_module" else argument(node, 1, "dim")
    if not isinstance(x, Grid) or not isinstance(dim, int) or dim % (last + 1) in x.axes:
        return analysis.mark_opaque(node, "is a softmax over channels")
    if dim % (last + 1) == last:
        analysis.weights.add(node)
    return x.unknown()


def _grid_dropout(node: fx.Node, analysis: Analysis) -> Fact:
    """Dropout of evaluation mode leaves weights as they are."""
    module = node.op == "call_module"
    if node.args[0] in analysis.weights and (module or argument(node, 2, "training", default=True) is False):
        analysis.weights.add(node)
    x = analysis.fact(node.args[0])
    return x.unknown() if isinstance(x, Grid) and not module and node not in analysis.weights else x


def _normed(node: fx.Node, analysis: Analysis) -> Fact:
    """A norm over the features of each head."""
    x, module = analysis.fact(node.args[0]), analysis.module(node)
    last, normed = len(shape(node)) - 1, tuple(module.normalized_shape)  # type: ignore[arg-type]
    if not isinstance(x, Grid) or x.axes[-1:] != (last,) or len(normed) > 1:
        return analysis.mark_opaque(node, f"{type(module).__name__} reads all channels")
    analysis.whole.append((node, x.units, (x.units.dim() - 1,)))
    return x.unknown()


def _normed_need(node: fx.Node, analysis: Analysis) -> None:
    if analysis.tracked(node):
        needed = analysis.needed(node)
        analysis.need(node.args[0], needed.any(dim=-1, keepdim=True).expand_as(needed))


# Parts of heads, joined: rotated positions, caches


def _joined(node: fx.Node, analysis: Analysis) -> Fact:
    """Join grids along one of their axes; empty values, of a new cache, add nothing."""
    grids = [analysis.fact(value) for value in _joinable(node)]
    found = [grid for grid in grids if isinstance(grid, Grid)]
    dim = argument(node, 1, "dim", "axis", default=0) % len(shape(node))
    if len(found) < len(grids) or len({grid.axes for grid in found}) > 1:
        return analysis.mark_opaque(node, "joins values whose channels are not all known")
    if len(found) == 1:
        return found[0]
    if dim not in found[0].axes:
        return analysis.mark_opaque(node, "joins heads along another axis than that of their features")
    place = found[0].axes.index(dim)
    units, constant = (
        torch.cat(each, place) for each in zip(*((grid.units, grid.constant) for grid in found), strict=True)
    )
    return Grid(found[0].axes, units, constant)


def _joinable(node: fx.Node) -> list[fx.Node]:
    values: Any = node.args[0]
    return [value for value in values if 0 not in shape(value)]


def _joined_need(node: fx.Node, analysis: Analysis) -> None:
    values, grid, needed = _joinable(node), analysis.fact(node), analysis.needed(node)
    assert isinstance(grid, Grid)
    dim = argument(node, 1, "dim", "axis", default=0) % len(shape(node))
    place = grid.axes.index(dim) if len(values) > 1 else 0
    counts = [analysis.needed(value).shape[place] for value in values]
    for value, part in zip(values, torch.split(needed, counts, place), strict=True):
        analysis.need(value, part)


GRID_JOIN = Rule(_joined, _joined_need, several=True)
MOVE = Rule(_moved, _moved_need, several=True)
SPLITTING_VIEW = Rule(_viewed, _viewed_need)
GRID_BINARY = Rule(_binary, _untracked_need, several=True)
GRID_FILL = Rule(_with_untracked, _untracked_need, several=True)
CAST = Rule(_cast, pass_need, several=True)
SOFTMAX = Rule(_softmax, pass_need, several=True)
GRID_DROPOUT = Rule(_grid_dropout, pass_need)
HEAD_NORM = Rule(_normed, _normed_need)
NORMS = (nn.LayerNorm, nn.RMSNorm)
