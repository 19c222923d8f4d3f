"""Walk a traced network: forwards for what is constant, backwards for what is needed, and see which units can go.

A unit can go when no layer that needs it would miss it: everywhere it is either not listened to, or a constant that can
be folded into the listener's bias. Needs are computed from the outputs backwards and pass only through connections that
live and units that vary, so chains of dead neurons fall in one walk, in both directions.
"""

import torch
from torch import Tensor, fx

from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.prune.analysis import Analysis, Listening, parts
from rigl_compress.pipeline.prune.facts import Channels, Fact
from rigl_compress.pipeline.prune.graph import is_plain
from rigl_compress.pipeline.prune.rules import rule_of
from rigl_compress.pipeline.prune.sizes import counted, reads_only_sizes

# A constant that stays anyway carries the others, unless it is so small that its own rounding would be blown up.
SMALLEST_CARRIER = 1 / 8


def analyse(graph: fx.GraphModule, topology: Topology) -> Analysis:
    """Find out everything about a traced network that was run once."""
    found = Analysis(graph, topology)
    nodes = list(graph.graph.nodes)
    for node in nodes:
        found.facts[node] = _fact(node, found)
        found.needs[node] = tuple(torch.zeros_like(part.varies) for part in parts(found.facts[node]))
    for node in reversed(nodes):
        if node not in found.blind:
            rule_of(node, found).backward(node, found)
            continue
        for source in node.all_input_nodes:
            found.need_all(source)
    _pin_what_is_missed(found)
    _leave_nothing_empty(found)
    return found


def _fact(node: fx.Node, found: Analysis) -> Fact:
    if is_plain(node) and node.op not in ("placeholder", "output"):
        return None if reads_only_sizes(node, found) else found.give_up(node, "reads values, not only sizes")
    fact = _followed(node, found)
    for channels in counted(node, found):
        found.units.pin(channels.units)
    return _unknown(fact, found) if node.meta.get("aliased") else fact


def _followed(node: fx.Node, found: Analysis) -> Fact:
    rule, first = rule_of(node, found), node.args[0] if node.args else None
    others = [source for source in node.all_input_nodes if source is not first and found.tracked(source)]
    if node.meta.get("aliased") and node.meta["changes"]:
        return found.give_up(node, "changes a value that is read under another name")
    if (others or isinstance(found.fact(first), tuple)) and not rule.several:
        return found.give_up(node, "takes several values")
    return rule.forward(node, found)


def _unknown(fact: Fact, found: Analysis) -> Fact:
    """A value that is changed behind our back: its units stay, and nothing is known of it."""
    for part in parts(fact):
        found.units.pin(part.units)
    if isinstance(fact, tuple):
        return tuple(part.unknown() if isinstance(part, Channels) else part for part in fact)
    return fact.unknown() if isinstance(fact, Channels) else fact


def _pin_what_is_missed(found: Analysis) -> None:
    for listening in found.listening.values():
        if isinstance(listening.source, Channels):
            found.units.pin(listening.source.units[listening.missed])
    for layer, listening in found.listening.items():
        if isinstance(listening.source, Channels) and listening.carried.any():
            found.carriers[layer] = _carrier(listening, listening.source, found)
            found.units.pin(listening.source.units[[found.carriers[layer]]])


def _carrier(listening: Listening, source: Channels, found: Analysis) -> int:
    """Choose the largest constant that stays in any case, or the largest of all."""
    size: Tensor = torch.where(listening.carried, source.constant.abs(), 0.0)
    staying = found.units.pinned(source.units) & (size >= size.max() * SMALLEST_CARRIER)
    return int((torch.where(staying, size, 0.0) if staying.any() else size).argmax())


def _leave_nothing_empty(found: Analysis) -> None:
    """A layer that would lose all its units keeps one, which is constant: the layer has become its constant."""
    layers = [found.outputs(node) for node in found.layers.values()]
    pieces = [part for node in found.splits for part in parts(found.fact(node))]
    for channels in (*layers, *pieces):
        if not found.units.pinned(channels.units).any():
            found.units.pin(channels.units[:1])
