"""From an analysis to a removal: the prune plan, and the constants to fold."""

from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.fx_tracing import sized_nodes, written_sizes
from rigl_compress.models.layer_resizing import CONVOLUTIONS, TRANSPOSED, by_output, can_select, size_of
from rigl_compress.models.literal_picks import pick_nodes
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.pruning.analysis import Analysis, parts
from rigl_compress.pruning.channel_facts import Channels, Grid, Source, Tracked
from rigl_compress.pruning.graph_walk import keep_torn_grids
from rigl_compress.pruning.literal_sizes import counts_after, value_after
from rigl_compress.pruning.multihead_rules import head_change, head_fold
from rigl_compress.pruning.note_summary import summarised
from rigl_compress.pruning.picking_rules import picked_after
from rigl_compress.pruning.removal import Fold, Removal
from rigl_compress.pruning.shuffling_views import channels_per_group


def make_removal(analysis: Analysis) -> Removal:
    """List the layers that lose inputs or outputs, the sizes in the code that change with them, and the folds."""
    sizes = _sizes(analysis)
    folds = {layer: fold for layer in analysis.layers if (fold := _fold(layer, analysis))}
    changes = [change for layer in analysis.layers if (change := _change(layer, analysis, folds.get(layer)))]
    changes += [change for layer in analysis.attentions if (change := head_change(layer, analysis))]
    folds |= {layer: fold for layer in analysis.attentions if (fold := head_fold(layer, analysis))}
    plan = PrunePlan(tuple(changes), tuple(sizes.items()), summarised(analysis.notes), analysis.graph.meta["inputs"])
    return Removal(plan, tuple(folds.values()))


def _sizes(analysis: Analysis) -> dict[str, tuple[int, ...]]:
    """Return the sizes in the code that change. Those of a recorded run cannot: the channels they count are kept."""
    named = {**sized_nodes(analysis.graph.graph), **pick_nodes(analysis.graph.graph)}
    while True:
        sizes = {name: numbers for name, node in named.items() if (numbers := _new_sizes(node, analysis))}
        if not sizes or not analysis.graph.meta["recorded"]:
            return sizes
        for name in sizes:
            for each in (named[name], *named[name].all_input_nodes):  # a pick counts the channels of its source
                analysis.keep(each)
            analysis.notes.append(f"{named[name].name}: its sizes are numbers in a recorded run, and stay (write -1)")
        keep_torn_grids(analysis)


def _change(layer: str, analysis: Analysis, fold: Fold | None) -> LayerChange | None:
    module = analysis.module(analysis.layers[layer])
    removed, gone = removed_inputs(layer, analysis), _removed(analysis.outputs(analysis.layers[layer]), analysis)
    if not gone.any() and not removed.any():
        return None
    inputs, outputs = size_of(module)
    return LayerChange(
        layer,
        inputs,
        outputs,
        removed_inputs=_positions(removed),
        removed_outputs=_positions(gone),
        selects=analysis.input_uses[layer].source is Source.INPUT if removed.any() else False,
        new_bias=_needs_bias(module, fold, ~gone),
    )


def _needs_bias(module: nn.Module, fold: Fold | None, kept: Tensor) -> bool:
    weighted = isinstance(module, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED))
    if fold is None or fold.carrier is not None or not weighted or module.bias is not None:
        return False
    weight: Any = module.weight
    return bool(fold.into_bias(by_output(module, weight))[kept].any())


def _positions(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero().flatten().tolist())


def _removed(channels: Tracked, analysis: Analysis) -> Tensor:
    return ~analysis.units.pinned(channels.units)


def removed_inputs(layer: str, analysis: Analysis) -> Tensor:
    """Return which inputs of a layer are removed: dead units, or unneeded features of the network's input."""
    module, use = analysis.module(analysis.layers[layer]), analysis.input_uses.get(layer)
    if use is None:
        return torch.zeros(size_of(module)[0], dtype=torch.bool)
    if isinstance(use.source, Channels):
        return _removed(use.source, analysis)
    dropped = ~use.needed
    picks = use.source is Source.INPUT and can_select(module) and getattr(module, "groups", 1) == 1
    if not picks:
        return torch.zeros_like(dropped)
    if dropped.all():
        dropped[0] = False  # one input is left to carry the batch size
    return dropped


def _fold(layer: str, analysis: Analysis) -> Fold | None:
    """Return the fold of a layer's removed constant inputs, or None where they contribute nothing."""
    use = analysis.input_uses.get(layer)
    grouped = getattr(analysis.module(analysis.layers[layer]), "groups", 1) != 1  # whole groups are removed
    if use is None or not isinstance(use.source, Channels) or grouped:
        return None
    constant, carrier = use.source.constant, analysis.carriers.get(layer)
    folded = _removed(use.source, analysis) & ~use.source.varies & (constant != 0)
    if not folded.any():
        return None
    factors = constant[folded] if carrier is None else constant[folded] / constant[carrier]
    return Fold(layer, _positions(folded), tuple(factors.tolist()), carrier)


def _left(node: fx.Node, analysis: Analysis) -> int:
    """Return how many channels a value has along their axis afterwards."""
    channels = analysis.channels(node)
    return channels_per_group(node, analysis) if channels is None else int((~_removed(channels, analysis)).sum())


def _new_sizes(node: fx.Node, analysis: Analysis) -> tuple[int, ...]:
    """Return the new literal sizes of a view or a split: 0 for an unchanged one, () if all are unchanged."""
    if node in analysis.picks:
        return picked_after(node, analysis)
    if node in analysis.splits:
        pieces = [_removed(part, analysis) for part in parts(analysis.fact(node))]
        left = [int((~gone).sum()) for gone in pieces]
        chunks_alike = node.target in ("chunk", torch.chunk) and len({*left}) == 1
        return tuple(left) if any(gone.any() for gone in pieces) and not chunks_alike else ()
    fact = analysis.fact(node)
    if isinstance(fact, Grid) and node in analysis.grid_resizes:
        return _new_grid_sizes(node, fact, analysis)
    if node not in analysis.resizes or not parts(fact):
        return ()
    place, sizes, count = analysis.resizes[node], written_sizes(node), _left(node, analysis)
    if value_after(sizes[place], analysis) in (-1, count):
        return ()
    return tuple(count if index == place else 0 for index in range(len(sizes)))


def _new_grid_sizes(node: fx.Node, grid: Grid, analysis: Analysis) -> tuple[int, ...]:
    """Return the new sizes of a view into several axes of channels: 0 for an unchanged one, () if all are unchanged."""
    after = dict(zip(analysis.grid_resizes[node], counts_after(grid, analysis).values(), strict=True))
    sizes = enumerate(written_sizes(node))
    numbers = tuple(_new_size(size, after.get(place), analysis) for place, size in sizes)
    return numbers if any(numbers) else ()


def _new_size(written: Any, count: int | None, analysis: Analysis) -> int:
    return 0 if count is None or value_after(written, analysis) in (-1, count) else count
