"""From what was found to what is done: the prune plan, and the constants to fold."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.resize import CONVOLUTIONS, can_select
from rigl_compress.pipeline.prune.analysis import Analysis
from rigl_compress.pipeline.prune.facts import Channels, Source


def make_plan(found: Analysis) -> PrunePlan:
    """List the layers that lose inputs or outputs."""
    changes = [change for layer in found.layers if (change := _change(layer, found))]
    sizes = tuple((node.name, numbers) for node in found.resizes if (numbers := _new_sizes(node, found)))
    return PrunePlan(tuple(changes), sizes, tuple(dict.fromkeys(found.notes)))


def _change(layer: str, found: Analysis) -> LayerChange | None:
    node = found.layers[layer]
    outputs, inputs = found.outputs(node), removed_inputs(layer, found)
    gone = _gone(outputs, found)
    if not gone.any() and not inputs.any():
        return None
    module, source = found.module(node), found.fact(node.all_input_nodes[0])
    return LayerChange(
        layer,
        inputs=len(inputs),
        outputs=len(gone),
        removed_inputs=_positions(inputs),
        removed_outputs=_positions(gone),
        selects=bool(source is Source.INPUT and inputs.any()),
        new_bias=isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d)
        and module.bias is None
        and layer in found.listening
        and bool(folded(layer, found)[~gone].any()),
    )


def _positions(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero().flatten().tolist())


def _gone(channels: Channels | None, found: Analysis) -> Tensor:
    return torch.zeros(0, dtype=torch.bool) if channels is None else ~found.units.pinned(channels.units)


def removed_inputs(layer: str, found: Analysis) -> Tensor:
    """Which inputs of a layer go: dead units, or features of the network's input that nothing needs."""
    listening = found.listening.get(layer)
    if listening is None:
        return torch.zeros(0, dtype=torch.bool)
    node = found.layers[layer]
    source = found.fact(node.all_input_nodes[0])
    if isinstance(source, Channels):
        return _gone(source, found)
    dropped = ~listening.needed
    picks = source is Source.INPUT and can_select(found.module(node)) and getattr(found.module(node), "groups", 1) == 1
    if not picks or not dropped.any():
        return torch.zeros_like(dropped)
    if dropped.all():
        dropped[0] = False  # something must carry the size of the batch
    return dropped


def folded(layer: str, found: Analysis) -> Tensor:
    """What the removed constant inputs of a layer add to the bias of each of its outputs."""
    node, listening = found.layers[layer], found.listening[layer]
    weight = found.weight(node)
    source = found.channels(node.all_input_nodes[0])
    if source is None or listening.carrier is not None or getattr(found.module(node), "groups", 1) != 1:
        return torch.zeros(len(weight), dtype=torch.float64)
    steady = _gone(source, found) & ~source.varies
    matrix = weight.flatten(2).sum(dim=2) if isinstance(found.module(node), CONVOLUTIONS) else weight
    return matrix[:, steady] @ source.constant[steady]


def carried(layer: str, found: Analysis) -> tuple[int, Tensor, Tensor] | None:
    """What the carrier of a layer takes over: its position, the kernels added to it, and where these are connected."""
    node, listening = found.layers[layer], found.listening.get(layer)
    source = found.channels(node.all_input_nodes[0])
    if source is None or listening is None or listening.carrier is None:
        return None
    steady = _gone(source, found) & ~source.varies & (source.constant != 0)
    if not steady.any():
        return None
    share = source.constant[steady] / source.constant[listening.carrier]
    kernels = torch.einsum("oi...,i->o...", found.weight(node)[:, steady], share)
    return listening.carrier, kernels, found.mask(node)[:, steady].any(dim=1)


def _new_sizes(node: fx.Node, found: Analysis) -> tuple[int, ...]:
    """Give the sizes written out in the code of a view or a split anew; 0 stands for what stays as it is."""
    written: Any = found.resizes[node]
    fact = found.fact(node)
    if isinstance(fact, tuple):
        lengths = [int((~_gone(part, found)).sum()) for part in fact if isinstance(part, Channels)]
        return tuple(lengths) if lengths != [len(piece) for piece in written] else ()
    if not isinstance(fact, Channels):
        return ()
    left = int((~_gone(fact, found)).sum())
    return () if left == len(fact.units) else (*([0] * (len(written) - 1)), left)
