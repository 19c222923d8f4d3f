"""Sizes in a network's code: those that it reads from its values, and those that it writes into views and splits.

Both change with the number of channels. A size that goes into anything but a view is part of the computation, and keeps
the channels that it counts.
"""

import operator
from typing import Any

import torch
from torch import fx

from rigl_compress.models.tracing import written_sizes
from rigl_compress.pipeline.prune.analysis import Analysis
from rigl_compress.pipeline.prune.facts import Channels
from rigl_compress.pipeline.prune.graph import is_plain, shape

_SHAPES = ("shape", "size")
_INDEPENDENT = ("dim", "ndim", "ndimension", "dtype", "device", "is_floating_point", "is_cuda", "requires_grad")


def _asked(node: fx.Node) -> str:
    """What is read of a value: x.shape and x.size() are the attribute `shape` and the method `size`."""
    return str(node.args[1]) if node.target is getattr else str(node.target)


def reads_only_sizes(node: fx.Node, found: Analysis) -> bool:
    """Say whether a number is made of sizes, and of nothing else of a tracked value."""
    known = (*_SHAPES, "numel", *_INDEPENDENT)
    return not any(found.tracked(source) for source in node.all_input_nodes) or _asked(node) in known


def counted(node: fx.Node, found: Analysis) -> list[Channels]:
    """Give the values whose number of channels goes into an operation, apart from views that are followed."""
    sizes = written_sizes(node) if node in found.resizes else ()
    spared = sizes[found.resizes[node]] if sizes and sizes.count(sizes[found.resizes[node]]) == 1 else None
    numbers = [source for source in node.all_input_nodes if is_plain(source) and source is not spared]
    return [channels for number in numbers for channels in _counted_in(number, found)]


def _counted_in(number: fx.Node, found: Analysis) -> list[Channels]:
    if not number.all_input_nodes:
        return []
    source, axes = _axes_read(number)
    channels = found.channels(source)
    if channels is not None:
        return [channels] if channels.axis in axes else []
    return [each for part in number.all_input_nodes for each in _counted_in(part, found) if is_plain(part)]


def _axes_read(number: fx.Node) -> tuple[fx.Node, range | tuple[int, ...]]:
    """Give the value that a number is read from, and which of its axes: x.size(1), x.shape[2:], x.numel()."""
    source = number.all_input_nodes[0]
    if number.target is operator.getitem and _asked(source) in _SHAPES and source.all_input_nodes:
        value, index = source.all_input_nodes[0], number.args[1]
        return value, _some(range(_rank(value)), index)
    if _asked(number) in _INDEPENDENT:
        return source, ()
    by_number = number.target == "size" and len(number.args) > 1
    return source, _some(range(_rank(source)), number.args[1] if by_number else slice(None))


def _some(axes: range, index: Any) -> range | tuple[int, ...]:
    if isinstance(index, slice):
        return axes[index]
    return (axes[index],) if isinstance(index, int) and len(axes) else axes


def _rank(node: fx.Node) -> int:
    return len(shape(node) or ())


def value_after(argument: Any, found: Analysis) -> Any:
    """Compute a number as the pruned network will: sizes of values are those of the channels that are left."""
    if not isinstance(argument, fx.Node):
        return argument
    if not is_plain(argument):
        return torch.empty(_shape_after(argument, found), device="meta")
    if argument.op == "placeholder":
        return argument.args[0] if argument.args else None
    args = fx.map_arg(argument.args, lambda node: value_after(node, found))
    if argument.op == "call_method":
        return getattr(args[0], str(argument.target))(*args[1:], **argument.kwargs)
    function: Any = argument.target
    return function(*args, **argument.kwargs)


def _shape_after(node: fx.Node, found: Analysis) -> tuple[int, ...]:
    channels, sizes = found.channels(node), list(shape(node))
    if channels is not None:
        sizes[channels.axis] = int(found.units.pinned(channels.units).sum())
    return tuple(sizes)
