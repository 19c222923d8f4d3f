"""Layers with weights: they make units of their own, and listen to those of others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.resize import gate_rows
from rigl_compress.pipeline.prune.analysis import Analysis, Listening, shape
from rigl_compress.pipeline.prune.facts import Channels, Fact, Source


@dataclass(frozen=True)
class Rule:
    """What an operation does: forwards it gives the fact of its value, backwards it says what it needs."""

    forward: Callable[[fx.Node, Analysis], Fact]
    backward: Callable[[fx.Node, Analysis], None]


def _input(node: fx.Node) -> Any:
    return node.args[0] if node.args else next(iter(node.kwargs.values()))


def _source(node: fx.Node, found: Analysis, axis: int) -> Channels | Source | None:
    """What goes into a layer that reads its channels along `axis`."""
    x = found.fact(_input(node))
    if isinstance(x, Channels) and (x.axis != axis % len(shape(_input(node))) or found.shared(node)):
        found.give_up(node, "reads channels along another axis, or is used twice")
        return Source.OPAQUE
    return x if isinstance(x, Channels | Source) else Source.OPAQUE


def _fresh(node: fx.Node, found: Analysis, axis: int, constant: Tensor) -> Channels:
    units = found.units.fresh(len(constant))
    if found.shared(node):
        found.units.pin(units)
        constant = torch.full_like(constant, torch.nan)
    found.layers[str(node.target)] = node
    return Channels(axis % len(shape(node)), units, constant)


def _bias(node: fx.Node, found: Analysis, count: int) -> Tensor:
    bias: Any = found.module(node).bias
    return torch.zeros(count, dtype=torch.float64) if bias is None else bias.detach().cpu().double()


def _constant_outputs(connected: Tensor, weight: Tensor, bias: Tensor, x: Channels, foldable: Tensor) -> Tensor:
    """Give the outputs that no varying input reaches: their bias and what constant inputs add. nan for the others."""
    steady = ~x.varies & foldable
    value = bias + weight[:, steady] @ x.constant[steady]
    return torch.where(connected[:, ~steady].any(dim=1), torch.nan, value)


# Linear and convolution: the weight as a matrix [outputs, inputs]


def _dense_matrices(node: fx.Node, found: Analysis) -> tuple[Tensor, Tensor]:
    """Connections and summed weights between every input and output channel, groups spread out."""
    connected = found.mask(node).flatten(2).any(dim=2) if found.mask(node).dim() > 2 else found.mask(node)
    weight = found.weight(node).flatten(2).sum(dim=2) if found.mask(node).dim() > 2 else found.weight(node)
    groups = getattr(found.module(node), "groups", 1)
    if groups == 1:
        return connected, weight
    spread: Any = torch.block_diag  # untyped
    return spread(*connected.double().chunk(groups)).bool(), spread(*weight.chunk(groups))


def _foldable(node: fx.Node, found: Analysis, x: Channels) -> Tensor:
    """Which constant inputs can go into the bias: behind zero padding only zeros, as the border sees fewer of them."""
    module: Any = found.module(node)
    padding = getattr(module, "padding", 0)
    padded = padding == "same" or (any(padding) if isinstance(padding, tuple) else padding not in (0, "valid"))
    if not padded or module.padding_mode != "zeros":
        return ~x.varies
    return x.constant == 0


def _weighted(axis: int) -> Rule:
    def forward(node: fx.Node, found: Analysis) -> Fact:
        x, (connected, weight) = _source(node, found, axis), _dense_matrices(node, found)
        bias = _bias(node, found, len(weight))
        if isinstance(x, Channels):
            constant = _constant_outputs(connected, weight, bias, x, _foldable(node, found, x))
        else:
            constant = torch.where(connected.any(dim=1), torch.nan, bias)
        result = _fresh(node, found, axis, constant)
        _couple_groups(node, found, x, result)
        return result

    def backward(node: fx.Node, found: Analysis) -> None:
        result, x = found.channels(node), found.fact(_input(node))
        assert result is not None
        connected, _ = _dense_matrices(node, found)
        working = found.needed(node) & result.varies
        needed = connected[working].any(dim=0)
        if found.shared(node):
            needed = torch.ones_like(needed)
        found.need(_input(node), needed)
        found.listening[str(node.target)] = _listening(node, found, x, needed)

    return Rule(forward, backward)


def _listening(node: fx.Node, found: Analysis, x: Fact, needed: Tensor) -> Listening:
    if not isinstance(x, Channels) or len(x.units) != len(needed):
        return Listening(needed, needed)
    missed = needed & ~_foldable(node, found, x)
    steady = missed & ~x.varies
    if int(steady.sum()) < 2 or getattr(found.module(node), "groups", 1) != 1:
        return Listening(needed, missed)
    carrier = int(torch.where(steady, x.constant.abs(), -1.0).argmax())
    missed = missed & ~steady
    missed[carrier] = True
    return Listening(needed, missed, carrier)


def _couple_groups(node: fx.Node, found: Analysis, x: Any, result: Channels) -> None:
    """Channels of a group stay or go together: a grouped convolution can only lose whole groups."""
    groups = getattr(found.module(node), "groups", 1)
    if groups == 1:
        return
    if not isinstance(x, Channels):
        found.units.pin(result.units)
        return
    for inputs, outputs in zip(x.units.chunk(groups), result.units.chunk(groups), strict=True):
        found.units.couple_all(torch.cat([inputs, outputs]))


LINEAR, CONVOLUTION = _weighted(-1), _weighted(1)


# Embedding: dimensions of the vectors are the channels


def _embedding(node: fx.Node, found: Analysis) -> Fact:
    empty = ~found.mask(node).any(dim=0)
    return _fresh(node, found, -1, torch.where(empty, 0.0, torch.nan).double())


def _no_need(node: fx.Node, found: Analysis) -> None:
    del node, found  # tokens are no channels


EMBEDDING = Rule(_embedding, _no_need)


# GRU: a hidden unit is a row in each of three gates of two matrices, and a column of the recurrent one


def _gru(node: fx.Node, found: Analysis) -> Fact:
    module: Any = found.module(node)
    x = _source(node, found, -1)
    simple = module.num_layers == 1 and not module.bidirectional and len(node.args) + len(node.kwargs) == 1
    if not simple or module.proj_size or found.shared(node):
        if isinstance(x, Channels):
            found.units.pin(x.units)
        return found.give_up(node, "has several layers or directions, or an initial state of its own")
    found.layers[str(node.target)] = node
    hidden = found.units.fresh(module.hidden_size)
    never = torch.full((module.hidden_size,), torch.nan, dtype=torch.float64)
    if not isinstance(x, Channels):
        steady = torch.zeros(module.hidden_size, dtype=torch.bool)
    else:
        steady = _always_zero(node, found, x)
    constant = torch.where(steady, 0.0, never)
    sequence_rank = len(shape(_input(node)))
    # The last state is [layers, batch, hidden], or [layers, hidden] without a batch.
    return (Channels(sequence_rank - 1, hidden, constant), Channels(sequence_rank - 1, hidden, constant))


def _always_zero(node: fx.Node, found: Analysis, x: Channels) -> Tensor:
    """Hidden units that stay at their initial 0: nothing reaches their new state, which has no bias either.

    The new state n = tanh(W_in x + b_in + r · (W_hn h + b_hn)) must be 0; other constants change from step to step.
    """
    size = x.units.new_tensor(range(found.module(node).hidden_size))  # type: ignore[arg-type]
    rows = size + 2 * len(size)
    silent = ~found.mask(node, "weight_ih_l0")[rows][:, x.varies | (x.constant != 0)].any(dim=1)
    module: Any = found.module(node)
    if module.bias:
        silent &= (module.bias_ih_l0.detach().cpu()[rows] == 0) & (module.bias_hh_l0.detach().cpu()[rows] == 0)
    recurrent = found.mask(node, "weight_hh_l0")[rows]
    while True:  # a unit may hear units that are always zero themselves
        fewer = silent & ~recurrent[:, ~silent].any(dim=1)
        if torch.equal(fewer, silent):
            return silent
        silent = fewer


def _gru_need(node: fx.Node, found: Analysis) -> None:
    result = found.fact(node)
    if not isinstance(result, tuple) or not isinstance(result[0], Channels):
        for source in node.all_input_nodes:
            if source in found.needs:
                found.need(source, torch.ones_like(found.needs[source]))
        return
    size = len(result[0].units)
    needed = torch.zeros(size, dtype=torch.bool)
    for user in node.users:
        if user in found.needs:
            needed |= found.needed(user)
    from_input, recurrent = found.mask(node, "weight_ih_l0"), found.mask(node, "weight_hh_l0")
    while True:  # units that living units listen to from one step to the next
        working = needed & result[0].varies
        wider = needed | recurrent[gate_rows(working.nonzero().squeeze(1), size)].any(dim=0)
        if torch.equal(wider, needed):
            break
        needed = wider
    found.units.pin(result[0].units[needed & result[0].varies])
    heard = from_input[gate_rows((needed & result[0].varies).nonzero().squeeze(1), size)].any(dim=0)
    x = found.channels(_input(node))
    found.need(_input(node), heard)
    found.listening[str(node.target)] = Listening(heard, heard if x is None else heard & (x.varies | (x.constant != 0)))


GRU = Rule(_gru, _gru_need)
