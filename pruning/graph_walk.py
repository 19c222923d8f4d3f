"""Walk a traced network: forwards to find constants, backwards to find what is needed, and so which units are dead.

A unit can be removed when every layer either does not use it, or can fold its constant value into a bias. Needs are
computed from the outputs backwards and pass only through active connections and units that vary, so one walk finds
chains of dead neurons in both directions.
"""

import torch
from torch import Tensor, fx

from rigl_compress.models.topology import Topology
from rigl_compress.pruning.analysis import Analysis, InputUse, parts
from rigl_compress.pruning.channel_facts import Channels, Fact, Grid, Tracked, along_axes
from rigl_compress.pruning.literal_sizes import keep_counted, reads_only_sizes
from rigl_compress.pruning.rule_table import rule_of
from rigl_compress.pruning.traced_graph import is_plain

# A constant that is kept anyway carries the others, unless it is so small that its rounding error would be amplified.
SMALLEST_CARRIER = 1 / 8


def analyse(graph: fx.GraphModule, topology: Topology) -> Analysis:
    """Return the facts about a traced network that was run once."""
    analysis = Analysis(graph, topology)
    nodes = list(graph.graph.nodes)
    for node in nodes:
        analysis.facts[node] = _fact(node, analysis)
        analysis.needs[node] = tuple(torch.zeros_like(part.varies) for part in parts(analysis.facts[node]))
    for node in reversed(nodes):
        if node not in analysis.opaque:
            rule_of(node, analysis).backward(node, analysis)
            continue
        for source in node.all_input_nodes:
            analysis.need_all(source)
    _pin_required_units(analysis)
    _keep_one_unit_per_layer(analysis)
    keep_torn_grids(analysis)
    return analysis


def _fact(node: fx.Node, analysis: Analysis) -> Fact:
    if is_plain(node) and node.op not in ("placeholder", "output"):
        return None if reads_only_sizes(node, analysis) else analysis.mark_opaque(node, "reads values, not only sizes")
    fact = _followed(node, analysis)
    keep_counted(node, analysis)
    return _unknown(fact, analysis) if node.meta.get("aliased") else fact


def _followed(node: fx.Node, analysis: Analysis) -> Fact:
    rule, first = rule_of(node, analysis), node.args[0] if node.args else None
    others = [source for source in node.all_input_nodes if source is not first and analysis.tracked(source)]
    if node.meta.get("aliased") and node.meta["changes"]:
        return analysis.mark_opaque(node, "changes a value that is read under another name")
    if (others or isinstance(analysis.fact(first), tuple)) and not rule.several:
        return analysis.mark_opaque(node, "takes several values, or the states of several cells, at once")
    return rule.forward(node, analysis)


def _unknown(fact: Fact, analysis: Analysis) -> Fact:
    """Pin the units of a value that is changed under another name: nothing is known of it."""
    for part in parts(fact):
        analysis.units.pin(part.units)
    return _without_constants(fact)


def _without_constants(fact: Fact) -> Fact:
    if isinstance(fact, tuple):
        return tuple(map(_without_constants, fact))
    return fact.unknown() if isinstance(fact, Tracked) else fact


def _pin_required_units(analysis: Analysis) -> None:
    for use in analysis.input_uses.values():
        if isinstance(use.source, Channels):
            analysis.units.pin(use.source.units[use.required])
    for layer, use in analysis.input_uses.items():
        if isinstance(use.source, Channels) and use.carriable.any():
            analysis.carriers[layer] = _carrier(use, use.source, analysis)
            analysis.units.pin(use.source.units[[analysis.carriers[layer]]])


def _carrier(use: InputUse, source: Channels, analysis: Analysis) -> int:
    """Choose the largest constant that is kept anyway, or the largest of all."""
    size: Tensor = torch.where(use.carriable, source.constant.abs(), 0.0)
    staying = analysis.units.pinned(source.units) & (size >= size.max() * SMALLEST_CARRIER)
    return int((torch.where(staying, size, 0.0) if staying.any() else size).argmax())


def _keep_one_unit_per_layer(analysis: Analysis) -> None:
    """Pin one unit of each layer that would lose all: the layer then computes a constant."""
    layers = [analysis.outputs(node) for node in analysis.layers.values()]
    cells = [cell for cells in analysis.hidden.values() for cell in cells]
    pieces = [part for node in (*analysis.splits, *analysis.picks) for part in parts(analysis.fact(node))]
    heads = [each.units for each in analysis.attentions.values()]
    for units in (*(channels.units for channels in (*layers, *cells, *pieces)), *heads):
        if not analysis.units.pinned(units).any():
            analysis.units.pin(units.flatten()[:1])


def keep_torn_grids(analysis: Analysis) -> None:
    """Pin grids that would not be grids any more: only whole slices can go, along axes that may lose any."""
    facts = ((node, part) for node, fact in analysis.facts.items() for part in parts(fact))
    grids = [(node, part.units, ()) for node, part in facts if isinstance(part, Grid)]
    torn = True
    while torn:
        torn = False
        for node, units, fixed in (*grids, *analysis.whole):
            if _is_torn(analysis.units.pinned(units), fixed):
                analysis.notes.append(f"{node.name}: only whole rows of its channels can be removed")
                analysis.units.pin(units)
                torn = True


def _is_torn(kept: Tensor, fixed: tuple[int, ...]) -> bool:
    """Whether what is kept of a grid is no grid, or lacks a slice along a fixed axis.

    >>> _is_torn(torch.tensor([[True, True], [False, False]]), ()), _is_torn(torch.tensor([[True, False]] * 2), (1,))
    (False, True)
    >>> _is_torn(torch.tensor([[True, False], [False, True]]), ())
    True
    """
    slices = along_axes(kept)
    whole = torch.ones_like(kept)
    for axis, each in enumerate(slices):
        whole &= each.reshape([-1 if place == axis else 1 for place in range(kept.dim())])
    return not torch.equal(whole, kept) or not all(bool(slices[axis].all()) for axis in fixed)
