"""Rules for attention: a head is kept or removed as a whole, with its rows of queries, keys and values.

Weights of attention have a sum of 1, so where the values of a head are constant, so is what it contributes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.fx_tracing import argument
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Grid, Tracked, axes_of
from rigl_compress.pruning.traced_graph import shape


@dataclass(frozen=True)
class HeadView:
    """Queries, keys, values or scores by head."""

    axis: int | None  # of the heads; None: there is one head
    units: Tensor  # int64 [heads, features]; scores have one feature
    constant: Tensor

    def matches(self, other: "HeadView") -> bool:
        """Whether both have the same heads along the same axis."""
        return self.axis == other.axis and len(self.units) == len(other.units)

    def repeated(self, heads: int) -> "HeadView":
        """Return each head as often in a row as it takes to have so many."""
        times = max(1, heads // len(self.units))
        return HeadView(self.axis, *(each.repeat_interleave(times, 0) for each in (self.units, self.constant)))


def head_view(node: Any, analysis: Analysis, feature: int | None) -> HeadView | None:
    """Return a value by head, if its features lie along this axis and its heads along one before the last two."""
    x = analysis.fact(node)
    if not isinstance(x, Tracked):
        return None
    rank, axes = len(shape(node)), axes_of(x)
    last = None if feature is None else feature % rank
    heads = [axis for axis in axes if axis != last]
    if len(heads) > 1 or any(axis >= rank - 2 for axis in heads):
        return None
    if last is not None and last not in axes and shape(node)[last] > 1:
        return None
    count = shape(node)[heads[0]] if heads else 1
    units, constant = (tensor.reshape(count, -1) for tensor in (x.units, x.constant))  # heads lie ahead of features
    return HeadView(heads[0] if heads else None, units, constant)


# softmax(q kᵀ) v, written out


def _product(node: fx.Node, analysis: Analysis) -> Fact:
    """Multiply queries with keys, or weights with values."""
    if node.kwargs or len(node.args) != 2 or len({len(shape(side)) for side in node.args}) > 1:
        return analysis.mark_opaque(node, "multiplies values in an unsupported way")
    left, right = node.args
    if (pair := _scoring(left, right, analysis)) is not None:
        return _scores(*pair, analysis)
    weights, values = head_view(left, analysis, None), head_view(right, analysis, -1)
    if weights is None or values is None or not weights.matches(values) or not _is_score(left, analysis):
        return analysis.mark_opaque(node, "multiplies values in an unsupported way")
    _couple(analysis, weights, values)
    return _mixed(right, analysis, left in analysis.weights)


def _scoring(left: Any, right: Any, analysis: Analysis) -> tuple[HeadView, HeadView] | None:
    """Return queries and keys by head, if the product of these values sums over the features of both."""
    queries, keys = head_view(left, analysis, -1), head_view(right, analysis, -2)
    if queries is None or keys is None or _is_score(left, analysis):
        return None
    return (queries, keys) if queries.matches(keys) and queries.units.shape == keys.units.shape else None


def _is_score(node: Any, analysis: Analysis) -> bool:
    x = analysis.fact(node)
    return isinstance(x, Grid) and all(axis < len(shape(node)) - 2 for axis in x.axes)


def _scores(queries: HeadView, keys: HeadView, analysis: Analysis) -> Grid:
    _couple(analysis, queries, keys)
    axes, units = (() if queries.axis is None else (queries.axis,)), queries.units[:, 0]
    units = units if axes else units[0]
    return Grid(axes, units, torch.full(units.shape, torch.nan, dtype=torch.float64))


def _couple(analysis: Analysis, *views: HeadView) -> None:
    for members in zip(*(view.units for view in views), strict=True):
        analysis.units.couple_all(torch.cat(members))


def _mixed(values: Any, analysis: Analysis, sums_to_one: bool) -> Tracked:
    """Return what attention makes of values: constants stay, or only zeros if the weights have another sum."""
    x = analysis.fact(values)
    assert isinstance(x, Tracked)
    return x if sums_to_one else _with_zeros_only(x)


def _with_zeros_only(x: Tracked) -> Tracked:
    return x.with_constant(torch.where(x.constant == 0, x.constant, torch.nan))


def _product_need(node: fx.Node, analysis: Analysis) -> None:
    left, right = node.args
    if _is_score(node, analysis) and not _is_score(left, analysis):
        for side in (left, right):
            _need_heads(side, analysis, analysis.needed(node).reshape(-1))
        return
    analysis.need(right, analysis.needed(node))
    _need_heads(left, analysis, _live(node, analysis))


def _live(node: Any, analysis: Analysis) -> Tensor:
    """Return which heads contribute something that varies and is needed."""
    view = head_view(node, analysis, -1)
    assert view is not None
    return (analysis.needed(node).reshape(view.units.shape) & view.constant.isnan()).any(dim=1)


def _need_heads(node: Any, analysis: Analysis, heads: Tensor) -> None:
    needed = analysis.needed(node)
    analysis.need(node, heads.reshape(-1, 1).expand(len(heads), needed.numel() // len(heads)).reshape(needed.shape))


# The fused operation


def _attention(node: fx.Node, analysis: Analysis) -> Fact:
    q, k, v = _views(node, analysis)
    if q is None or k is None or v is None or not (q.matches(k) and q.matches(v)):
        return analysis.mark_opaque(node, "attends to values whose heads are not all known")
    mask = argument(node, 3, "attn_mask")
    if analysis.tracked(mask) or (isinstance(mask, fx.Node) and _per_head(mask, len(shape(node)), q.axis)):
        return analysis.mark_opaque(node, "has a mask for each head")
    _couple(analysis, q, k, v)
    result = _spread(v, len(shape(node)))
    exact = argument(node, 4, "dropout_p", default=0.0) == 0  # it is dropped in evaluation mode too
    return result if exact else _with_zeros_only(result)


def _views(node: fx.Node, analysis: Analysis) -> tuple[HeadView | None, HeadView | None, HeadView | None]:
    """Return queries, keys and values by head; of grouped queries, keys and values once for each of them."""
    q, k, v = (head_view(each, analysis, -1) for each in _arguments(node))
    if q is None or k is None or v is None or not argument(node, 7, "enable_gqa", default=False):
        return q, k, v
    return q, k.repeated(len(q.units)), v.repeated(len(q.units))


def _spread(view: HeadView, rank: int) -> Tracked:
    """Return values by head as the channels of a result of this rank."""
    axes = tuple(axis for axis in (view.axis, rank - 1 if view.units.shape[1] > 1 else None) if axis is not None)
    units, constant = (tensor.squeeze(0) if view.axis is None else tensor for tensor in (view.units, view.constant))
    if len(axes) == 1 and view.axis is not None:
        units, constant = units[:, 0], constant[:, 0]
    return Channels(axes[0], units, constant) if len(axes) == 1 else Grid(axes, units, constant)


def _arguments(node: fx.Node) -> tuple[Any, Any, Any]:
    first, second, third = (argument(node, place, name) for place, name in enumerate(("query", "key", "value")))
    return first, second, third


def _per_head(mask: fx.Node, rank: int, axis: int | None) -> bool:
    """Whether a mask differs from head to head."""
    sizes = mask.meta["shape"]
    place = None if axis is None or sizes is None else axis - rank + len(sizes)
    return place is not None and place >= 0 and sizes[place] > 1


def _attention_need(node: fx.Node, analysis: Analysis) -> None:
    queries, keys, values = _arguments(node)
    live, heads = _live(node, analysis), _count(values, analysis)
    needed = analysis.needed(node).reshape(heads, len(live) // heads, -1).any(dim=1)  # by any query of a group
    analysis.need(values, needed.reshape(analysis.needed(values).shape))
    _need_heads(queries, analysis, live)
    _need_heads(keys, analysis, live.reshape(heads, -1).any(dim=1))


def _count(node: Any, analysis: Analysis) -> int:
    view = head_view(node, analysis, -1)
    assert view is not None
    return len(view.units)


MATMUL = Rule(_product, _product_need, several=True)
ATTENTION = Rule(_attention, _attention_need, several=True)
