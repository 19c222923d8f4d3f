"""Rules for views that split the axis of the channels: channel shuffles written as views, and images made of features.

A shuffle is view → transpose → view, as in ShuffleNet: [N, g · c, …] → [N, g, c, …] → [N, c, g, …] → [N, c · g, …].
"""

from math import prod
from typing import Any

import torch
from torch import fx, nn

from rigl_compress.models.fx_tracing import argument, written_sizes
from rigl_compress.models.layer_resizing import BATCH_NORMS, CONVOLUTIONS, TRANSPOSED
from rigl_compress.pruning.analysis import Analysis, Rule, parts
from rigl_compress.pruning.channel_facts import Channels, Fact
from rigl_compress.pruning.shuffling_rules import grouped, need_groups, shuffled, undealt
from rigl_compress.pruning.traced_graph import shape

_VIEWS = ("view", "reshape", torch.reshape)
_MERGES = (*_VIEWS, "flatten", torch.flatten)
_SWAPS = ("transpose", torch.transpose, "permute", torch.permute)


def rule_of_view(node: fx.Node, analysis: Analysis) -> Rule | None:
    """Return the rule of a view that splits the channels, and of what belongs to a shuffle; None for other nodes."""
    x = analysis.channels(node.args[0]) if node.args else None
    if x is not None and node.target in _VIEWS and node not in analysis.shuffles and node.meta["shape"] is not None:
        analysis.shuffles |= _chain(node, x.axis)
    if node in analysis.shuffles:
        return SHUFFLE
    return UNFLATTEN if x is not None and _unflattens(node, analysis, x.axis) else None


# Shuffles


def _chain(view: fx.Node, axis: int) -> dict[fx.Node, int]:
    """Return the nodes of a shuffle that begins with a view, each with the number of groups; {} if it does not."""
    before, split = shape(view.args[0]), shape(view)
    if len(split) != len(before) + 1 or (*split[:axis], split[axis] * split[axis + 1], *split[axis + 2 :]) != before:
        return {}
    swap, copies, merge = _followers(view)
    swapped = (*split[:axis], split[axis + 1], split[axis], *split[axis + 2 :])
    if swap is None or merge is None or _order(swap, len(split)) != _swapped(axis, len(split)):
        return {}
    if shape(swap) != swapped or shape(merge) != before or min(split[axis : axis + 2]) < 2:
        return {}
    return dict.fromkeys((view, swap, *copies, merge), split[axis])


def _followers(view: fx.Node) -> tuple[fx.Node | None, list[fx.Node], fx.Node | None]:
    """Return the only reader of a view, if it swaps axes, then copies, then the only reader, if it merges axes."""
    swap, copies = _only_user(view, _SWAPS), []
    last = swap
    while last is not None and (copy := _only_user(last, ("contiguous", "clone"))) is not None:
        copies.append(copy)
        last = copy
    return swap, copies, None if last is None else _only_user(last, _MERGES)


def _only_user(node: fx.Node, targets: tuple[Any, ...]) -> fx.Node | None:
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target in targets and users[0].args[0] is node else None


def _order(node: fx.Node, rank: int) -> list[int]:
    if node.target in ("permute", torch.permute):
        dims: Any = argument(node, 1, "dims", default=())
        order = list(dims if isinstance(dims, tuple | list) else node.args[1:])
        return [dim % rank if isinstance(dim, int) else -1 for dim in order]
    one, other = (argument(node, place + 1, f"dim{place}") % rank for place in range(2))
    return [{one: other, other: one}.get(axis, axis) for axis in range(rank)]


def _swapped(axis: int, rank: int) -> list[int]:
    return [{axis: axis + 1, axis + 1: axis}.get(each, each) for each in range(rank)]


def _shuffle(node: fx.Node, analysis: Analysis) -> Fact:
    """Pass the channels on in a tuple, as they are at the beginning, until the last view merges the two axes again."""
    groups, x = analysis.shuffles[node], parts(analysis.fact(node.args[0]))[0]
    assert isinstance(x, Channels)  # heads are no shuffle
    begins, ends = isinstance(analysis.fact(node.args[0]), Channels), shape(node)[x.axis] == len(x.units)
    if node.target in _VIEWS:
        analysis.resizes[node] = x.axis + int(begins)
    return shuffled(x, analysis, groups) if ends and not begins else (x,)


def _shuffle_need(node: fx.Node, analysis: Analysis) -> None:
    needed = analysis.needed(node)
    merged = isinstance(analysis.fact(node), Channels)
    analysis.need(node.args[0], undealt(needed, analysis.shuffles[node]) if merged else needed)


def channels_per_group(node: fx.Node, analysis: Analysis) -> int:
    """Return how many channels of each group of a shuffle are kept."""
    (x,) = parts(analysis.fact(node))
    return int(analysis.units.pinned(x.units).sum()) // analysis.shuffles[node]


# Features as channels of an image: [N, c · h · w] → [N, c, h, w]


def _unflattens(node: fx.Node, analysis: Analysis, axis: int) -> bool:
    """Whether a view makes every few channels in a row one channel of an image, which layers read."""
    module = analysis.module(node) if node.op == "call_module" else None
    if node.meta["shape"] is None or not (node.target in _VIEWS or isinstance(module, nn.Unflatten)):
        return False
    before, after = shape(node.args[0]), shape(node)
    splits = after[:axis] == before[:axis] and axis == len(before) - 1 and len(after) > len(before)
    return splits and prod(after[axis + 1 :]) > 1 and all(_reads_image(user, analysis) for user in node.users)


def _reads_image(user: fx.Node, analysis: Analysis) -> bool:
    return user.op == "call_module" and isinstance(analysis.module(user), _IMAGE_LAYERS)


_IMAGE_LAYERS = (*CONVOLUTIONS, *TRANSPOSED, *BATCH_NORMS, nn.ReLU, nn.LeakyReLU, nn.PixelShuffle, nn.Upsample)


def _unflatten(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.channels(node.args[0])
    assert x is not None
    if node.op == "call_module":
        module: Any = analysis.module(node)
        if analysis.unchangeable_reason(node) or -1 in module.unflattened_size:
            return analysis.mark_opaque(node, "reshapes channels in an unsupported way")
        analysis.layers[str(node.target)] = node
    elif any(isinstance(size, torch.dtype) for size in written_sizes(node)):
        return analysis.mark_opaque(node, "reshapes channels in an unsupported way")
    else:
        analysis.resizes[node] = x.axis
    return grouped(x, analysis, len(x.units) // shape(node)[x.axis])


SHUFFLE = Rule(_shuffle, _shuffle_need, several=True)
UNFLATTEN = Rule(_unflatten, need_groups)
