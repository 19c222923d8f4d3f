"""Operations that pick channels by numbers in the code: slices, `narrow`, `index_select`; and how they are rewritten.

A prune plan has new numbers for each of them: the place of the channels in the index, then start and end of a slice, or
all positions.
"""

import operator
from typing import Any

import torch
from torch import fx

from rigl_compress.models.fx_tracing import argument

NARROW = ("narrow", torch.narrow)
SELECT = ("index_select", torch.index_select)


def pick_nodes(graph: fx.Graph) -> dict[str, fx.Node]:
    """Return the operations that may pick channels, under names that are the same in every trace.

    >>> from rigl_compress.models.fx_tracing import traced
    >>> from torch import nn
    >>> class First(nn.Module):
    ...     def forward(self, x):
    ...         return x[:, :2] + x[0]
    >>> pick_nodes(traced(First()).graph)
    {'pick 1': getitem}
    """
    picks = [node for node in graph.nodes if node.target in (*NARROW, *SELECT) or _indexed(node)]
    return {f"pick {number}": node for number, node in enumerate(picks, 1)}


def _indexed(node: fx.Node) -> bool:
    return node.target is operator.getitem and not isinstance(node.args[1], int)


def is_range(step: Any) -> bool:
    """Return whether a step of an index picks all channels between two bounds."""
    return isinstance(step, slice) and step.step in (None, 1)


def steps_of(node: fx.Node) -> tuple[Any, ...]:
    """Return the index of a pick, one step for each axis, whatever the operation."""
    if node.target is operator.getitem:
        index = node.args[1]
        return index if isinstance(index, tuple) else (index,)
    dim: Any = argument(node, 1, "dim")
    step: Any = slice(0, 1) if node.target in NARROW else []
    whole = slice(None)
    return (*[whole] * dim, step) if dim >= 0 else (Ellipsis, step, *[whole] * (-dim - 1))


def repicked(node: fx.Node, numbers: tuple[int, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the call of a pick with new numbers: an index, whatever the operation was."""
    place, *new = numbers
    steps = list(steps_of(node))
    steps[place] = slice(*new) if is_range(steps[place]) else new
    return operator.getitem, (node.args[0], tuple(steps)), {}
