"""From what was found to what is done: the prune plan, and the constants to fold."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.resize import can_select, folding, size_of
from rigl_compress.models.tracing import sized_nodes, written_sizes
from rigl_compress.pipeline.prune.analysis import Analysis, parts
from rigl_compress.pipeline.prune.facts import Channels, Source
from rigl_compress.pipeline.prune.sizes import value_after


def make_plan(found: Analysis) -> PrunePlan:
    """List the layers that lose inputs or outputs, and the sizes in the code that change with them."""
    changes = [change for layer in found.layers if (change := _change(layer, found))]
    named = sized_nodes(found.graph.graph).items()
    sizes = tuple((name, numbers) for name, node in named if (numbers := _new_sizes(node, found)))
    return PrunePlan(tuple(changes), sizes, tuple(dict.fromkeys(found.notes)), found.graph.meta["inputs"])


def _change(layer: str, found: Analysis) -> LayerChange | None:
    module = found.module(found.layers[layer])
    removed, gone = removed_inputs(layer, found), _gone(found.outputs(found.layers[layer]), found)
    if not gone.any() and not removed.any():
        return None
    inputs, outputs = size_of(module)
    return LayerChange(
        layer,
        inputs,
        outputs,
        removed_inputs=_positions(removed),
        removed_outputs=_positions(gone),
        selects=found.listening[layer].source is Source.INPUT if removed.any() else False,
        new_bias=isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
        and module.bias is None
        and bool(folded(layer, found)[~gone].any()),
    )


def _positions(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero().flatten().tolist())


def _gone(channels: Channels, found: Analysis) -> Tensor:
    return ~found.units.pinned(channels.units)


def removed_inputs(layer: str, found: Analysis) -> Tensor:
    """Which inputs of a layer go: dead units, or features of the network's input that nothing needs."""
    module, listening = found.module(found.layers[layer]), found.listening.get(layer)
    if listening is None:
        return torch.zeros(size_of(module)[0], dtype=torch.bool)
    if isinstance(listening.source, Channels):
        return _gone(listening.source, found)
    dropped = ~listening.needed
    picks = listening.source is Source.INPUT and can_select(module) and getattr(module, "groups", 1) == 1
    if not picks:
        return torch.zeros_like(dropped)
    if dropped.all():
        dropped[0] = False  # something must carry the size of the batch
    return dropped


def folded(layer: str, found: Analysis) -> Tensor:
    """What the removed constant inputs of a layer add to its bias."""
    node, listening = found.layers[layer], found.listening.get(layer)
    weight = found.weight(node, folding(found.module(node))[0])
    grouped = getattr(found.module(node), "groups", 1) != 1  # whole groups go, and nothing of theirs is left
    if listening is None or not isinstance(listening.source, Channels) or layer in found.carriers or grouped:
        return torch.zeros(len(weight), dtype=torch.float64)
    steady = _gone(listening.source, found) & ~listening.source.varies
    return weight.reshape(*weight.shape[:2], -1).sum(dim=2)[:, steady] @ listening.source.constant[steady]


def carried(layer: str, found: Analysis) -> tuple[int, Tensor, Tensor] | None:
    """What the carrier of a layer takes over: its position, the kernels added to it, and where these are connected."""
    node, carrier = found.layers[layer], found.carriers.get(layer)
    if carrier is None:
        return None
    source: Any = found.listening[layer].source
    steady = _gone(source, found) & ~source.varies & (source.constant != 0)
    if not steady.any():
        return None
    share = source.constant[steady] / source.constant[carrier]
    kernels = torch.einsum("oi...,i->o...", found.weight(node)[:, steady], share)
    return carrier, kernels, found.mask(node)[:, steady].any(dim=1)


def _new_sizes(node: fx.Node, found: Analysis) -> tuple[int, ...]:
    """Give the sizes written out in a view or a split anew; 0 stands for what stays as it is, () for nothing to do."""
    if node in found.splits:
        pieces = [_gone(part, found) for part in parts(found.fact(node))]
        return tuple(int((~gone).sum()) for gone in pieces) if any(gone.any() for gone in pieces) else ()
    channels = found.channels(node)
    if channels is None or node not in found.resizes:
        return ()
    place, sizes, left = found.resizes[node], written_sizes(node), int((~_gone(channels, found)).sum())
    if value_after(sizes[place], found) in (-1, left):
        return ()
    return tuple(left if index == place else 0 for index in range(len(sizes)))
