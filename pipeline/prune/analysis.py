"""Walk a traced network: forwards for what is constant, backwards for what is needed, and see which units can go.

A unit can go when no layer that needs it would miss it: everywhere it is either not listened to, or a constant that can
be folded into the listener's bias. Needs are computed from the outputs backwards and pass only through connections that
live and units that vary, so chains of dead neurons fall in one walk, in both directions.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.topology import Topology
from rigl_compress.models.tracing import traced
from rigl_compress.pipeline.prune.facts import Channels, Fact, Source, Units


@dataclass(frozen=True)
class Listening:
    """How a layer uses its inputs: which it needs, and which of those it cannot do without.

    Behind zero padding a constant cannot go into the bias, since the border sees less of it; but one constant input can
    carry the kernels of all the others, each scaled by the quotient of the constants: border and all stay exact.
    """

    needed: Tensor  # bool [inputs]
    missed: Tensor  # bool [inputs]: neither constant nor replaceable
    carrier: int | None = None  # the constant input that carries the others


@dataclass
class Analysis:
    """A traced network and what is found out about it. Rules read and write it."""

    graph: fx.GraphModule
    topology: Topology
    units: Units = field(default_factory=Units)
    facts: dict[fx.Node, Fact] = field(default_factory=dict)
    needs: dict[fx.Node, Tensor] = field(default_factory=dict)
    listening: dict[str, Listening] = field(default_factory=dict)  # by layer
    layers: dict[str, fx.Node] = field(default_factory=dict)  # layers with channels, and the node that calls them
    resizes: dict[fx.Node, Any] = field(default_factory=dict)  # nodes with sizes written out: how to give them anew
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.calls = Counter(str(node.target) for node in self.graph.graph.nodes if node.op == "call_module")

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

    def outputs(self, node: fx.Node) -> Channels | None:
        """The channels that a layer gives; a GRU gives them twice."""
        fact = self.fact(node)
        first = fact[0] if isinstance(fact, tuple) else fact
        return first if isinstance(first, Channels) else None

    def mask(self, node: fx.Node, name: str = "weight") -> Tensor:
        """Which connections of a layer live. What the topology does not name lives everywhere, zeros too."""
        weight: Tensor = getattr(self.module(node), name)
        found = self.topology.get(f"{node.target}.{name}")
        return torch.ones(weight.shape, dtype=torch.bool) if found is None else found.cpu()

    def weight(self, node: fx.Node, name: str = "weight") -> Tensor:
        """A layer's weights with exact zeros where nothing lives."""
        tensor: Tensor = getattr(self.module(node), name)
        return tensor.detach().cpu().double() * self.mask(node, name)

    def shared(self, node: fx.Node) -> bool:
        """Whether the node's module is called more than once."""
        return self.calls[str(node.target)] > 1

    # What rules say

    def need(self, node: Any, needed: Tensor) -> None:
        """Channels of a node's value are needed by somebody."""
        if isinstance(node, fx.Node) and node in self.needs:
            self.needs[node] |= needed

    def needed(self, node: fx.Node) -> Tensor:
        """Which channels of a node's value somebody needs."""
        return self.needs[node]

    def keep(self, node: Any) -> None:
        """Whatever a node's value is made of stays, and is needed."""
        found = self.fact(node)
        for part in found if isinstance(found, tuple) else (found,):
            if isinstance(part, Channels):
                self.units.pin(part.units)

    def give_up(self, node: fx.Node, why: str) -> Source:
        """An operation that is not understood: what goes into it stays."""
        if any(isinstance(self.fact(source), Channels | tuple) for source in node.all_input_nodes):
            self.notes.append(f"{node.name}: {why}")
        for source in node.all_input_nodes:
            self.keep(source)
        return Source.OPAQUE


def analyse(graph: fx.GraphModule, topology: Topology) -> Analysis:
    """Find out everything about a traced network whose nodes know their shapes."""
    from rigl_compress.pipeline.prune.rules import rule_of

    found = Analysis(graph, topology)
    nodes = list(graph.graph.nodes)
    rules = {node: rule_of(node, found) for node in nodes}
    for node in nodes:
        found.facts[node] = rules[node].forward(node, found)
    for node, fact in found.facts.items():
        if isinstance(fact, Channels):
            found.needs[node] = torch.zeros(len(fact.units), dtype=torch.bool)
    for node in reversed(nodes):
        rules[node].backward(node, found)
    _pin_what_is_missed(found)
    _leave_no_layer_empty(found)
    return found


def _pin_what_is_missed(found: Analysis) -> None:
    for layer, listening in found.listening.items():
        channels = found.channels(found.layers[layer].all_input_nodes[0])
        if channels is not None:
            found.units.pin(channels.units[listening.missed])


def _leave_no_layer_empty(found: Analysis) -> None:
    """A layer that would lose all its units keeps one, which is constant: the layer has become its constant."""
    for node in found.layers.values():
        channels = found.outputs(node)
        if channels is not None and not found.units.pinned(channels.units).any():
            found.units.pin(channels.units[:1])


class Shapes(fx.Interpreter):
    """Runs a traced network once and notes the shape of every value."""

    def run_node(self, n: fx.Node) -> Any:
        """Note the shape of a node's value."""
        value = super().run_node(n)
        n.meta["shape"] = tuple(value.shape) if isinstance(value, Tensor) else None
        n.meta["float"] = isinstance(value, Tensor) and value.is_floating_point()
        n.meta["tensor"] = isinstance(value, Tensor | tuple | list) and not isinstance(value, torch.Size)
        return value


def trace(model: nn.Module, example_input: Tensor | tuple[Any, ...]) -> fx.GraphModule:
    """Trace a network and note the shapes of its values on the example input."""
    inputs = example_input if isinstance(example_input, tuple) else (example_input,)
    try:
        graph = traced(model)
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{type(model).__name__} cannot be traced ({reason}): its forward must not branch on values; "
            "wrap the part that does in a module of its own, or prune the parts one by one"
        ) from None
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            Shapes(graph).run(*inputs)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        shapes = [tuple(value.shape) if isinstance(value, Tensor) else value for value in inputs]
        raise InputError(
            f"the example input of shape {shapes} does not go through {type(model).__name__}: "
            f"{lines[0] if lines else type(error).__name__}"
        ) from None
    finally:
        model.train(training)
    return graph


def shape(node: Any) -> tuple[int, ...]:
    """The shape of a node's value."""
    found: tuple[int, ...] = node.meta["shape"]
    return found


def is_tensor(node: fx.Node) -> bool:
    """Whether a node's value is a tensor or several."""
    return bool(node.meta.get("tensor"))
