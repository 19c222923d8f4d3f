"""Sizes in a network's code: those read from values, and those written into views and splits.

Both change with the number of channels. A size that is used by anything but a view is part of the computation, so the
channels that it counts are pinned.
"""

import operator
from typing import Any

import torch
from torch import fx

from rigl_compress.models.fx_tracing import written_sizes
from rigl_compress.pruning.analysis import Analysis
from rigl_compress.pruning.channel_facts import Channels, Tracked, along_axes, axes_of
from rigl_compress.pruning.traced_graph import is_plain, shape

_SHAPES = ("shape", "size")
_INDEPENDENT = ("dim", "ndim", "ndimension", "dtype", "device", "is_floating_point", "is_cuda", "requires_grad")


def _attribute_read(node: fx.Node) -> str:
    """Return the attribute or method that is read: `shape` for x.shape, `size` for x.size()."""
    return str(node.args[1]) if node.target is getattr else str(node.target)


def reads_only_sizes(node: fx.Node, analysis: Analysis) -> bool:
    """Whether a number depends on a tracked value by its sizes alone."""
    known = (*_SHAPES, "numel", *_INDEPENDENT)
    if any(isinstance(analysis.fact(source), tuple) for source in node.all_input_nodes):
        return False  # its parts can have different sizes afterwards
    return not any(analysis.tracked(source) for source in node.all_input_nodes) or _attribute_read(node) in known


def keep_counted(node: fx.Node, analysis: Analysis) -> None:
    """Keep the channels whose number an operation depends on, apart from supported views: whole axes of a grid."""
    if node in analysis.picks:
        return  # bounds are rewritten
    for fact, axes in _counted(node, analysis):
        if isinstance(fact, Channels):
            analysis.units.pin(fact.units)
        else:
            analysis.whole.append((node, fact.units, tuple(fact.axes.index(axis) for axis in axes)))


def _counted(node: fx.Node, analysis: Analysis) -> list[tuple[Tracked, list[int]]]:
    spared = _rewritten_sizes(node, analysis)
    numbers = [source for source in node.all_input_nodes if is_plain(source) and source not in spared]
    return [found for number in numbers for found in _counted_in(number, analysis)]


def _rewritten_sizes(node: fx.Node, analysis: Analysis) -> list[fx.Node]:
    """Return the sizes of a view that are rewritten if they change; not those that also stand for another size."""
    axes = [analysis.resizes[node]] if node in analysis.resizes else analysis.grid_resizes.get(node, ())
    sizes = written_sizes(node) if axes else ()
    found = [sizes[axis] for axis in axes if 0 <= axis < len(sizes)]
    return [size for size in found if isinstance(size, fx.Node) and sizes.count(size) == 1]


def _counted_in(number: fx.Node, analysis: Analysis) -> list[tuple[Tracked, list[int]]]:
    if not number.all_input_nodes:
        return []
    source, axes = _axes_read(number)
    fact = analysis.fact(source)
    if isinstance(fact, Tracked):
        found = [axis for axis in axes_of(fact) if axis in axes]
        return [(fact, found)] if found else []
    return [each for part in number.all_input_nodes for each in _counted_in(part, analysis) if is_plain(part)]


def _axes_read(number: fx.Node) -> tuple[fx.Node, range | tuple[int, ...]]:
    """Return the value that a number is read from, and which of its axes: x.size(1), x.shape[2:], x.numel()."""
    source = number.all_input_nodes[0]
    if number.target is operator.getitem and _attribute_read(source) in _SHAPES and source.all_input_nodes:
        value, index = source.all_input_nodes[0], number.args[1]
        return value, _picked_axes(range(_rank(value)), index)
    if _attribute_read(number) in _INDEPENDENT:
        return source, ()
    by_number = number.target == "size" and len(number.args) > 1
    return source, _picked_axes(range(_rank(source)), number.args[1] if by_number else slice(None))


def _picked_axes(axes: range, index: Any) -> range | tuple[int, ...]:
    if isinstance(index, slice):
        return axes[index]
    return (axes[index],) if isinstance(index, int) and len(axes) else axes


def _rank(node: fx.Node) -> int:
    return len(shape(node) or ())


def value_after(argument: Any, analysis: Analysis) -> Any:
    """Compute a number as in the pruned network: sizes count the channels that are kept."""
    if not isinstance(argument, fx.Node):
        return argument
    if not is_plain(argument):
        return torch.empty(_shape_after(argument, analysis), device="meta")
    if argument.op == "placeholder":
        return argument.args[0] if argument.args else None
    args = fx.map_arg(argument.args, lambda node: value_after(node, analysis))
    if argument.op == "call_method":
        return getattr(args[0], str(argument.target))(*args[1:], **argument.kwargs)
    function: Any = argument.target
    return function(*args, **argument.kwargs)


def _shape_after(node: fx.Node, analysis: Analysis) -> tuple[int, ...]:
    fact, sizes = analysis.fact(node), list(shape(node))
    if isinstance(fact, Tracked):
        for axis, count in counts_after(fact, analysis).items():
            sizes[axis] = count
    return tuple(sizes)


def counts_after(fact: Tracked, analysis: Analysis) -> dict[int, int]:
    """Return how many channels are kept along each axis."""
    kept = along_axes(analysis.units.pinned(fact.units))
    return {axis: int(each.sum()) for axis, each in zip(axes_of(fact), kept, strict=True)}
