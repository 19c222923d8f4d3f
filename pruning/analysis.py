"""The facts about a traced network that rules read and write."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.topology import Topology
from rigl_compress.pruning.channel_facts import Channels, Fact, Grid, Source, Tracked, Units, joined


@dataclass(frozen=True)
class Rule:
    """The rule of an operation: `forward` returns the fact of its value, `backward` records which inputs it needs."""

    forward: Callable[[fx.Node, "Analysis"], Fact]
    backward: Callable[[fx.Node, "Analysis"], None]
    several: bool = False  # follows the channels of several values, not only of its first argument


@dataclass(frozen=True)
class InputUse:
    """How a layer uses its inputs: which it needs, and which of those cannot be replaced.

    Behind zero padding a constant cannot be folded into the bias, since fewer of its copies contribute at the border.
    But one constant input can carry the kernels of all others, each scaled by the quotient of the constants, exactly.
    """

    source: Channels | Source
    needed: Tensor  # bool [inputs]
    required: Tensor  # bool [inputs]: needed, and not replaceable
    carriable: Tensor  # bool [inputs]: needed, and any one of them can replace all


@dataclass(frozen=True)
class Heads:
    """The heads of an attention layer, each of them a unit, and what their values are where they are constant."""

    units: Tensor  # int64 [heads]
    constant: Tensor  # float64 [heads, features]


@dataclass
class Analysis:
    """A traced network and the facts about it."""

    graph: fx.GraphModule
    topology: Topology
    units: Units = field(default_factory=Units)
    facts: dict[fx.Node, Fact] = field(default_factory=dict)
    needs: dict[fx.Node, tuple[Tensor, ...]] = field(default_factory=dict)  # one per part of the value
    opaque: set[fx.Node] = field(default_factory=set)  # nodes without a rule: they need all of their inputs
    layers: dict[str, fx.Node] = field(default_factory=dict)  # layers that can change, and the node that calls them
    input_uses: dict[str, InputUse] = field(default_factory=dict)  # by layer
    carriers: dict[str, int] = field(default_factory=dict)  # by layer: the constant input that carries the others
    resizes: dict[fx.Node, int] = field(default_factory=dict)  # views with sizes: the place of the channels among them
    splits: list[fx.Node] = field(default_factory=list)
    picks: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)  # slices and the like: the channels picked
    shuffles: dict[fx.Node, int] = field(default_factory=dict)  # nodes of a channel shuffle written as views: groups
    hidden: dict[str, tuple[Channels, ...]] = field(default_factory=dict)  # by recurrent layer: the units of its cells
    moves: dict[fx.Node, tuple[Tensor, ...]] = field(default_factory=dict)  # per part: the channels of the input in it
    grid_resizes: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)  # `resizes` of views into several axes
    whole: list[tuple[fx.Node, Tensor, tuple[int, ...]]] = field(default_factory=list)  # units, axes that lose nothing
    weights: set[fx.Node] = field(default_factory=set)  # attention weights: non-negative, with a sum of 1
    attentions: dict[str, "Heads"] = field(default_factory=dict)  # layers that consist of heads
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        called = [node for node in self.graph.graph.nodes if node.op == "call_module"]
        self.calls = Counter(self.module(node) for node in called)
        self.owners = Counter(map(id, self._owned()))

    def _owned(self) -> Iterable[Any]:
        """Yield every parameter and buffer, once for each place that uses it."""
        for module in self.graph.modules():
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)
        read = {str(node.target) for node in self.graph.graph.nodes if node.op == "get_attr"}
        yield from (attrgetter(name)(self.graph) for name in read)

    # Read by rules

    def module(self, node: fx.Node) -> nn.Module:
        """Return the module that a node calls."""
        return self.graph.get_submodule(str(node.target))

    def fact(self, node: Any) -> Fact:
        """Return what is known of a node's value."""
        return self.facts.get(node) if isinstance(node, fx.Node) else None

    def channels(self, node: Any) -> Channels | None:
        """Return the channels of a node's value, if they are tracked."""
        found = self.fact(node)
        return found if isinstance(found, Channels) else None

    def outputs(self, node: fx.Node) -> Channels:
        """Return the units of a layer: its output channels, or the hidden units of all cells of a recurrent layer."""
        cells = self.hidden.get(str(node.target)) if node.op == "call_module" else None
        fact = self.fact(node) if cells is None else joined(cells, axis=0)
        assert isinstance(fact, Channels)
        return fact

    def tracked(self, node: Any) -> bool:
        """Whether channels of a node's value are tracked."""
        return isinstance(self.fact(node), Channels | Grid | tuple)

    def mask(self, node: fx.Node, name: str = "weight") -> Tensor:
        """Return the mask of a layer: all active where the topology has none, zeros too."""
        weight: Tensor = attrgetter(name)(self.module(node))
        found = self.topology.get(f"{node.target}.{name}")
        return torch.ones(weight.shape, dtype=torch.bool) if found is None else found.cpu()

    def weight(self, node: fx.Node, name: str = "weight") -> Tensor:
        """Return a layer's weights, zero at inactive connections."""
        tensor: Tensor = attrgetter(name)(self.module(node))
        return tensor.detach().cpu().double() * self.mask(node, name)

    def unchangeable_reason(self, node: fx.Node) -> str:
        """Return why a layer cannot be changed, or an empty string."""
        module = self.module(node)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        reasons = {
            "is used more than once": self.calls[module] > 1,
            "shares its weights": any(self.owners[id(tensor)] > 1 for tensor in own),
        }
        return next((reason for reason, true in reasons.items() if true), "")

    # Written by rules

    def need(self, node: Any, needed: Tensor, part: int = 0) -> None:
        """Record that channels of a node's value are needed."""
        if isinstance(node, fx.Node) and self.needs.get(node):
            self.needs[node][part].logical_or_(needed)

    def need_all(self, node: fx.Node) -> None:
        """Record that all channels of a node's value are needed."""
        for needed in self.needs.get(node, ()):
            needed.fill_(True)

    def needed(self, node: fx.Node) -> Tensor:
        """Return which channels of a node's value are needed."""
        return self.needs[node][0]

    def keep(self, node: fx.Node) -> None:
        """Pin all units of a node's value."""
        for part in parts(self.fact(node)):
            self.units.pin(part.units)

    def mark_opaque(self, node: fx.Node, reason: str) -> Source:
        """Mark an operation without a rule: all units of its inputs are pinned and needed.

        What is computed from the network's input alone, without units, is still a view of it.
        """
        has_units = node.op == "call_module" and any(True for _ in self.module(node).parameters())
        if has_units or any(self.tracked(source) for source in node.all_input_nodes):
            self.notes.append(f"{node.target if node.op == 'call_module' else node.name}: {reason}")
        self.opaque.add(node)
        for source in node.all_input_nodes:
            self.keep(source)
        facts = [self.fact(source) for source in node.all_input_nodes]
        untouched = not has_units and all(fact in (None, *Source) for fact in facts)
        return Source.INPUT if untouched and Source.INPUT in facts else Source.OPAQUE


def parts(fact: Fact) -> tuple[Tracked, ...]:
    """Return the tracked channels of a value, of all its parts in a row."""
    if isinstance(fact, tuple):
        return tuple(channels for part in fact for channels in parts(part))
    return (fact,) if isinstance(fact, Tracked) else ()
