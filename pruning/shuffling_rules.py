"""Rules for operations that exchange channels with each other or with space: pixel and channel shuffles."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.fx_tracing import argument
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact
from rigl_compress.pruning.traced_graph import shape


def _option(node: fx.Node, analysis: Analysis, name: str) -> Any:
    """Return an option of a call: an attribute of the module, or the second argument of the function."""
    return getattr(analysis.module(node), name) if node.op == "call_module" else argument(node, 1, name)


def _channels(node: fx.Node, analysis: Analysis, axis: int, option: Any) -> Fact:
    """Return the tracked channels of the first argument; a note if they lie elsewhere than the operation needs them."""
    x = analysis.fact(node.args[0])
    if isinstance(x, Channels) and (x.axis != axis % len(shape(node.args[0])) or not isinstance(option, int)):
        return analysis.mark_opaque(node, "works along another axis than that of the channels")
    return x


# Pixel shuffle: r² channels in a row become one, r times as large in both directions


def _pixel_shuffle(node: fx.Node, analysis: Analysis) -> Fact:
    """Couple the channels that become one; it is constant where they are all constant and equal."""
    factor = _option(node, analysis, "upscale_factor")
    x = _channels(node, analysis, -3, factor)
    if not isinstance(x, Channels):
        return x
    return grouped(x, analysis, factor**2)


def grouped(x: Channels, analysis: Analysis, size: int, axis: int | None = None) -> Channels:
    """Return a channel for every `size` channels in a row, which are kept or removed together."""
    units, constant = x.units.reshape(-1, size), x.constant.reshape(-1, size)
    for members in units:
        analysis.units.couple_all(members)
    same = (constant == constant[:, :1]).all(dim=1)
    merged = Channels(x.axis if axis is None else axis, units[:, 0], constant[:, 0])
    return merged.with_constant(torch.where(same, constant[:, 0], torch.nan))


def need_groups(node: fx.Node, analysis: Analysis) -> None:
    """A channel that is needed needs all those that it is made of."""
    source = analysis.channels(node.args[0])
    if source is not None and analysis.channels(node) is not None:
        needed = analysis.needed(node)
        analysis.need(node.args[0], needed.repeat_interleave(len(source.units) // len(needed)))


def _pixel_unshuffle(node: fx.Node, analysis: Analysis) -> Fact:
    factor = _option(node, analysis, "downscale_factor")
    x = _channels(node, analysis, -3, factor)
    return x.repeated(factor**2, x.axis) if isinstance(x, Channels) else x


def _need_whole(node: fx.Node, analysis: Analysis) -> None:
    source = analysis.channels(node.args[0])
    if source is not None and analysis.tracked(node):
        analysis.need(node.args[0], analysis.needed(node).reshape(len(source.units), -1).any(dim=1))


# Channel shuffle: g groups of channels, dealt in turn. Removed are those at the same place in all groups.


def _channel_shuffle(node: fx.Node, analysis: Analysis) -> Fact:
    groups = _option(node, analysis, "groups")
    x = _channels(node, analysis, 1, groups)
    return shuffled(x, analysis, groups) if isinstance(x, Channels) else x


def shuffled(x: Channels, analysis: Analysis, groups: int, axis: int | None = None) -> Channels:
    """Return the channels dealt in turn from each group; those at the same place of their groups are coupled."""
    analysis.units.couple(*x.units.reshape(groups, -1))
    return x.picked(dealt(len(x.units), groups), axis)


def dealt(count: int, groups: int) -> Tensor:
    """Return where each channel of a shuffle comes from.

    >>> dealt(6, 2).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    return torch.arange(count).reshape(groups, -1).t().flatten()


def _need_shuffled(node: fx.Node, analysis: Analysis) -> None:
    if analysis.tracked(node):
        groups, needed = _option(node, analysis, "groups"), analysis.needed(node)
        analysis.need(node.args[0], undealt(needed, groups))


def undealt(needed: Tensor, groups: int) -> Tensor:
    """Return values of shuffled channels in the order before the shuffle."""
    return needed.reshape(-1, groups).t().flatten()


PIXEL_SHUFFLE = Rule(_pixel_shuffle, need_groups)
PIXEL_UNSHUFFLE = Rule(_pixel_unshuffle, _need_whole)
CHANNEL_SHUFFLE = Rule(_channel_shuffle, _need_shuffled)
SHUFFLE_LAYERS: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((nn.PixelShuffle,), PIXEL_SHUFFLE),
    ((nn.PixelUnshuffle,), PIXEL_UNSHUFFLE),
    ((nn.ChannelShuffle,), CHANNEL_SHUFFLE),
)
SHUFFLES: dict[Any, Rule] = {
    torch.pixel_shuffle: PIXEL_SHUFFLE,
    torch.pixel_unshuffle: PIXEL_UNSHUFFLE,
    **dict.fromkeys((torch.channel_shuffle, nn.functional.native_channel_shuffle), CHANNEL_SHUFFLE),
}
