"""What is found out about a network while it is walked through. Rules read and write it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.prune.facts import Channels, Fact, Source, Units


@dataclass(frozen=True)
class Rule:
    """What an operation does: forwards it gives the fact of its value, backwards it says what it needs."""

    forward: Callable[[fx.Node, "Analysis"], Fact]
    backward: Callable[[fx.Node, "Analysis"], None]
    several: bool = False  # follows the channels of several values, not only of its first argument


@dataclass(frozen=True)
class Listening:
    """How a layer uses its inputs: which it needs, and which of those it cannot do without.

    Behind zero padding a constant cannot go into the bias, since the border sees less of it; but one constant input can
    carry the kernels of all the others, each scaled by the quotient of the constants: border and all stay exact.
    """

    source: Channels | Source
    needed: Tensor  # bool [inputs]
    missed: Tensor  # bool [inputs]: needed, and nothing can stand in for them
    carried: Tensor  # bool [inputs]: needed, and any one of them can stand in for all


@dataclass
class Analysis:
    """A traced network and what is found out about it."""

    graph: fx.GraphModule
    topology: Topology
    units: Units = field(default_factory=Units)
    facts: dict[fx.Node, Fact] = field(default_factory=dict)
    needs: dict[fx.Node, tuple[Tensor, ...]] = field(default_factory=dict)  # one per part of the value
    blind: set[fx.Node] = field(default_factory=set)  # nodes that need all that goes into them
    layers: dict[str, fx.Node] = field(default_factory=dict)  # layers that can change, and the node that calls them
    listening: dict[str, Listening] = field(default_factory=dict)  # by layer
    carriers: dict[str, int] = field(default_factory=dict)  # by layer: the constant input that carries the others
    resizes: dict[fx.Node, int] = field(default_factory=dict)  # views with sizes: the place of the channels among them
    splits: list[fx.Node] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        called = [node for node in self.graph.graph.nodes if node.op == "call_module"]
        self.calls = Counter(self.module(node) for node in called)
        self.owners = Counter(map(id, self._owned()))

    def _owned(self) -> Iterable[Any]:
        """Every parameter and buffer, once for each place that uses it."""
        for module in self.graph.modules():
            yield from module.parameters(recurse=False)
            yield from module.buffers(recurse=False)
        read = {str(node.target) for node in self.graph.graph.nodes if node.op == "get_attr"}
        yield from (attrgetter(name)(self.graph) for name in read)

    # What rules ask

    def module(self, node: fx.Node) -> nn.Module:
        """The module that a node calls."""
        return self.graph.get_submodule(str(node.target))

    def fact(self, node: Any) -> Fact:
        """What is known of a node's value."""
        return self.facts.get(node) if isinstance(node, fx.Node) else None

    def channels(self, node: Any) -> Channels | None:
        """The channels of a node's value, if they are tracked."""
        found = self.fact(node)
        return found if isinstance(found, Channels) else None

    def outputs(self, node: fx.Node) -> Channels:
        """The channels that a layer gives; a GRU gives them twice."""
        fact = self.fact(node)
        first = fact[0] if isinstance(fact, tuple) else fact
        assert isinstance(first, Channels)
        return first

    def tracked(self, node: Any) -> bool:
        """Whether channels of a node's value are tracked."""
        return isinstance(self.fact(node), Channels | tuple)

    def mask(self, node: fx.Node, name: str = "weight") -> Tensor:
        """Which connections of a layer live. What the topology does not name lives everywhere, zeros too."""
        weight: Tensor = getattr(self.module(node), name)
        found = self.topology.get(f"{node.target}.{name}")
        return torch.ones(weight.shape, dtype=torch.bool) if found is None else found.cpu()

    def weight(self, node: fx.Node, name: str = "weight") -> Tensor:
        """A layer's weights with exact zeros where nothing lives."""
        tensor: Tensor = getattr(self.module(node), name)
        return tensor.detach().cpu().double() * self.mask(node, name)

    def fixed(self, node: fx.Node) -> str:
        """Say why a layer cannot be changed; nothing if it can."""
        module = self.module(node)
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        reasons = {
            "is used more than once": self.calls[module] > 1,
            "shares its weights": any(self.owners[id(tensor)] > 1 for tensor in own),
        }
        return next((why for why, true in reasons.items() if true), "")

    # What rules say

    def need(self, node: Any, needed: Tensor, part: int = 0) -> None:
        """Channels of a node's value are needed by somebody."""
        if isinstance(node, fx.Node) and self.needs.get(node):
            self.needs[node][part].logical_or_(needed)

    def need_all(self, node: fx.Node) -> None:
        """Whatever a node's value has is needed."""
        for needed in self.needs.get(node, ()):
            needed.fill_(True)

    def needed(self, node: fx.Node) -> Tensor:
        """Which channels of a node's value somebody needs."""
        return self.needs[node][0]

    def keep(self, node: fx.Node) -> None:
        """Whatever units a node's value is made of stay."""
        for part in parts(self.fact(node)):
            self.units.pin(part.units)

    def give_up(self, node: fx.Node, why: str) -> Source:
        """An operation that is not understood: what goes into it stays, and is needed.

        What is computed from the network's input alone, without units, is still a view of it.
        """
        has_units = node.op == "call_module" and any(True for _ in self.module(node).parameters())
        if has_units or any(self.tracked(source) for source in node.all_input_nodes):
            self.notes.append(f"{node.target if node.op == 'call_module' else node.name}: {why}")
        self.blind.add(node)
        for source in node.all_input_nodes:
            self.keep(source)
        facts = [self.fact(source) for source in node.all_input_nodes]
        untouched = not has_units and all(fact in (None, *Source) for fact in facts)
        return Source.INPUT if untouched and Source.INPUT in facts else Source.OPAQUE


def parts(fact: Fact) -> tuple[Channels, ...]:
    """The tracked channels of a value."""
    return tuple(part for part in (fact if isinstance(fact, tuple) else (fact,)) if isinstance(part, Channels))
