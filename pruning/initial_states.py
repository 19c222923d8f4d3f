"""The initial states of a recurrent layer: none (zeros), made of units of the network, or from elsewhere."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from rigl_compress.models.fx_tracing import argument
from rigl_compress.models.recurrent_layers import cell_sizes
from rigl_compress.pruning.analysis import Analysis, parts
from rigl_compress.pruning.channel_facts import Channels
from rigl_compress.pruning.traced_graph import shape


@dataclass(frozen=True)
class InitialStates:
    """For each kind of state (h, and c of an LSTM) the channels of every cell; `unknown`: not made of units."""

    nodes: tuple[fx.Node, ...]
    kinds: tuple[tuple[Channels, ...], ...]
    unknown: bool = False

    def of_cell(self, index: int) -> list[Channels]:
        """Return the initial states of one cell."""
        return [cells[index] for cells in self.kinds]

    def need(self, needs: list[Tensor], analysis: Analysis) -> None:
        """Record what is needed of the values that are the states: what is needed of the cells."""
        for node in self.nodes:
            if self.unknown:
                analysis.need_all(node)
                continue
            for number, part in enumerate(analysis.needs[node]):
                if len(analysis.needs[node]) > 1 or len(needs) == 1:
                    part |= needs[number % len(needs)]
                else:
                    for needed in needs:
                        part |= needed


def initial_states(node: fx.Node, analysis: Analysis) -> InitialStates:
    """Return the initial states that a recurrent layer is called with."""
    states: Any = argument(node, 1, "hx")
    nodes = _nodes(states)
    if not nodes:
        return InitialStates((), ())
    module: Any = analysis.module(node)
    wanted, count = 2 if isinstance(module, nn.LSTM) else 1, len(cell_sizes(module))
    found = [channels for each in nodes if (channels := _by_cell(each, analysis, count))]
    kinds = tuple(kind for each in found for kind in each)
    if len(found) == len(nodes) and len(kinds) == wanted:
        return InitialStates(nodes, kinds)
    for each in nodes:
        analysis.keep(each)
    return InitialStates(nodes, (), unknown=True)


def _nodes(states: Any) -> tuple[fx.Node, ...]:
    if isinstance(states, fx.Node):
        return (states,)
    return tuple(each for each in states if isinstance(each, fx.Node)) if isinstance(states, tuple | list) else ()


def _by_cell(node: fx.Node, analysis: Analysis, count: int) -> list[tuple[Channels, ...]]:
    """Return the channels of a value, one list for each kind of state it holds; empty if they are not known."""
    fact = analysis.fact(node)
    if isinstance(fact, Channels):
        return [(fact,) * count] if fact.axis == len(shape(node)) - 1 else []
    found = tuple(part for part in parts(fact) if isinstance(part, Channels))
    if not isinstance(fact, tuple) or not found or len(found) % count:
        return []
    return [found[first : first + count] for first in range(0, len(found), count)]
