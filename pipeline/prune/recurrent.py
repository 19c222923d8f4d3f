"""The rule of a GRU: a hidden unit is a row in each gate of two matrices, and a column of the recurrent one."""

from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.resize import gate_rows
from rigl_compress.models.tracing import argument
from rigl_compress.pipeline.prune.analysis import Analysis, Listening, Rule
from rigl_compress.pipeline.prune.facts import Channels, Fact, Source
from rigl_compress.pipeline.prune.graph import shape
from rigl_compress.pipeline.prune.weighted import source


def _gru(node: fx.Node, found: Analysis) -> Fact:
    module: Any = found.module(node)
    simple = module.num_layers == 1 and not module.bidirectional and not module.proj_size
    if why := found.fixed(node):
        return found.give_up(node, why)
    if not simple or argument(node, 1, "hx") is not None or shape(node.args[0]) is None:
        return found.give_up(node, "has several layers or directions, an initial state, or packed sequences")
    x = source(node, found, -1)
    if node in found.blind:
        return x
    found.layers[str(node.target)] = node
    steady = _always_zero(node, found, x)
    # The last state is [layers, batch, hidden], or [layers, hidden] without a batch: channels last, as in the sequence.
    axis, units = len(shape(node.args[0])) - 1, found.units.fresh(module.hidden_size)
    states = Channels(axis, units, torch.where(steady, 0.0, torch.nan).double())
    return (states, states)


def _always_zero(node: fx.Node, found: Analysis, x: Channels | Source) -> Tensor:
    """Hidden units that stay at their initial 0: nothing reaches their new state, which has no bias either.

    The new state n = tanh(W_in x + b_in + r · (W_hn h + b_hn)) must be 0; other constants change from step to step.
    """
    module = found.module(node)
    from_input, recurrent = (found.mask(node, name).chunk(3)[2] for name in ("weight_ih_l0", "weight_hh_l0"))
    heard = x.varies | (x.constant != 0) if isinstance(x, Channels) else torch.ones(from_input.shape[1]).bool()
    silent = ~from_input[:, heard].any(dim=1)
    if module.bias:
        silent &= (_bias(module, "bias_ih_l0") == 0) & (_bias(module, "bias_hh_l0") == 0)
    while True:  # a unit may hear units that are always zero themselves
        fewer = silent & ~recurrent[:, ~silent].any(dim=1)
        if torch.equal(fewer, silent):
            return silent
        silent = fewer


def _bias(module: Any, name: str) -> Tensor:
    bias: Tensor = getattr(module, name)
    return bias.detach().cpu().chunk(3)[2]


def _gru_need(node: fx.Node, found: Analysis) -> None:
    states, (sequence, last) = found.outputs(node), found.needs[node]
    needed, size = sequence | last, len(states.units)
    from_input, recurrent = found.mask(node, "weight_ih_l0"), found.mask(node, "weight_hh_l0")
    while True:  # units that living units listen to from one step to the next
        rows = gate_rows((needed & states.varies).nonzero().squeeze(1), size)
        wider = needed | recurrent[rows].any(dim=0)
        if torch.equal(wider, needed):
            break
        needed = wider
    found.units.pin(states.units[needed & states.varies])
    heard = from_input[rows].any(dim=0)
    found.need(node.args[0], heard)
    found.listening[str(node.target)] = _listening(node, found, heard)


def _listening(node: fx.Node, found: Analysis, heard: Tensor) -> Listening:
    """Constants go into the bias, if there is one."""
    x, nobody = source(node, found, -1), torch.zeros_like(heard)
    if not isinstance(x, Channels):
        return Listening(x, heard, heard, nobody)
    foldable = ~x.varies if found.module(node).bias else x.constant == 0
    return Listening(x, heard, heard & ~foldable, nobody)


GRU = Rule(_gru, _gru_need)
