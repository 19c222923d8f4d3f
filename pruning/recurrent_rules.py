"""The rule of recurrent layers, cell by cell: a hidden unit is a row per gate of two matrices, and a column of one.

A cell is one layer in one direction. Its inputs are the hidden units of the cells below it, in both directions.
"""

from itertools import count
from typing import Any

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.recurrent_layers import cell_layers, cell_sizes, gate_count, gate_rows
from rigl_compress.pruning.analysis import Analysis, InputUse, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Source, joined
from rigl_compress.pruning.initial_states import InitialStates, initial_states
from rigl_compress.pruning.traced_graph import shape
from rigl_compress.pruning.weighted_layer_rules import source

# Forwards


def _recurrent(node: fx.Node, analysis: Analysis) -> Fact:
    module: Any = analysis.module(node)
    if reason := analysis.unchangeable_reason(node) or _unsupported(node, module, analysis):
        return analysis.mark_opaque(node, reason)
    x = source(node, analysis, -1)
    if node in analysis.opaque:
        return x
    analysis.layers[str(node.target)] = node
    begin = initial_states(node, analysis)
    if begin.unknown:
        analysis.notes.append(f"{node.target}: hidden units are kept, its initial state is not made of units")
    cells = _cells(node, analysis, x, begin)
    analysis.hidden[str(node.target)] = cells
    return _answer(node, module, cells)


def _unsupported(node: fx.Node, module: Any, analysis: Analysis) -> str:
    reasons = {
        "projects its hidden units (proj_size)": bool(module.proj_size),
        "reads packed sequences": shape(node.args[0]) is None,
        "takes several values": isinstance(analysis.fact(node.args[0]), tuple),
    }
    return next((reason for reason, true in reasons.items() if true), "")


def _cells(node: fx.Node, analysis: Analysis, x: Channels | Source, begin: InitialStates) -> tuple[Channels, ...]:
    """Return the hidden units of each cell, as they go into the layer above."""
    module: Any = analysis.module(node)
    cells: list[Channels] = []
    below: Fact = x if module.bias else _only_zeros(x)
    for names in cell_layers(module):
        for name in names:
            states = begin.of_cell(len(cells))
            constant = _constants(node, analysis, name, below, None if begin.unknown else states)
            cells.append(Channels(len(shape(node.args[0])) - 1, analysis.units.fresh(len(constant)), constant))
            _bind(cells[-1], begin, states, analysis)
        below = _only_zeros(joined(cells[-len(names) :], cells[-1].axis))
    return tuple(cells)


def _bind(cell: Channels, begin: InitialStates, states: list[Channels], analysis: Analysis) -> None:
    """Couple hidden units with the units of their initial states; pin them if those are not known."""
    for state in states:
        analysis.units.couple(cell.units, state.units)
    if begin.unknown:
        analysis.units.pin(cell.units)


def _answer(node: fx.Node, module: Any, cells: tuple[Channels, ...]) -> Fact:
    """Return the facts of (sequence, last state), with two last states of an LSTM: (sequence, (h, c)).

    The last state is [cells, N, units], or [cells, units] without a batch. That of a single cell has channels last, as
    the sequence has; of several cells, each is a part, which an index picks: state[-1] is [N, units].
    """
    axis, top = len(shape(node.args[0])) - 1, cells[-len(cell_layers(module)[0]) :]
    sequence = joined(top, axis)
    last: Fact = cells[0] if len(cells) == 1 else tuple(cell.along(axis - 1) for cell in cells)
    if not isinstance(module, nn.LSTM):
        return (sequence, last)
    return (sequence, (last, _only_zeros(last)))


def _only_zeros(fact: Fact) -> Fact:
    """Return channels without other constants than zero.

    The memory of an LSTM is constant where its state is constantly zero. And where no bias can take over the constants
    that a cell reads, only zeros are left out.
    """
    if isinstance(fact, tuple):
        return tuple(map(_only_zeros, fact))
    if not isinstance(fact, Channels):
        return fact
    return fact.with_constant(torch.where(fact.constant == 0, fact.constant, torch.nan))


def _constants(node: fx.Node, analysis: Analysis, cell: str, x: Fact, states: list[Channels] | None) -> Tensor:
    """Return the constant that each unit outputs at every step, nan if there is none; `states` None: not known.

    They are found in the rows of the gate that makes new values (a plain RNN has only one). In a GRU and an LSTM a unit
    stays at its initial 0 if its new value is always 0: no inputs, no bias; other constants change from step to step.
    In an RNN a unit without recurrent connections is constant from the first step.
    """
    value = _from_inputs(node, analysis, cell, x)
    gates = gate_count(analysis.module(node))
    recurrent = analysis.mask(node, f"weight_hh_{cell}").chunk(gates)[min(gates - 1, 2)]
    silent = (value == 0) & (states is not None)  # also before the first step
    for state in states or []:
        silent &= state.constant == 0
    silent = _closed(silent, recurrent)
    alone = ~recurrent[:, ~silent].any(dim=1)
    return torch.where(silent if gates > 1 else alone, value, torch.nan)


def _closed(silent: Tensor, recurrent: Tensor) -> Tensor:
    """Return the units that read only silent units, which may be themselves."""
    while True:
        fewer = silent & ~recurrent[:, ~silent].any(dim=1)
        if torch.equal(fewer, silent):
            return silent
        silent = fewer


def _from_inputs(node: fx.Node, analysis: Analysis, cell: str, x: Fact) -> Tensor:
    """Return the new value of each unit without its recurrent part, nan where it varies or could depend on gates."""
    module: Any = analysis.module(node)
    gates = gate_count(module)
    place = min(gates - 1, 2)
    connected, weight = (get(node, f"weight_ih_{cell}").chunk(gates)[place] for get in (analysis.mask, analysis.weight))
    biases = [_bias(module, f"{kind}_{cell}", gates)[place] for kind in ("bias_ih", "bias_hh")] if module.bias else []
    varies, constant = _inputs(x, connected.shape[1])
    if gates > 1:  # only an exact zero is followed: the reset gate of a GRU scales a part of the sum
        zero = ~connected[:, varies | (constant != 0)].any(dim=1)
        for bias in biases:
            zero &= bias == 0
        return torch.where(zero, 0.0, torch.nan).double()
    total = weight[:, ~varies] @ constant[~varies] + sum(biases, torch.zeros(len(weight), dtype=torch.float64))
    activated = torch.relu(total) if module.nonlinearity == "relu" else torch.tanh(total)
    return torch.where(connected[:, varies].any(dim=1), torch.nan, activated)


def _inputs(x: Fact, count: int) -> tuple[Tensor, Tensor]:
    if isinstance(x, Channels):
        return x.varies, x.constant
    return torch.ones(count, dtype=torch.bool), torch.full((count,), torch.nan, dtype=torch.float64)


def _bias(module: Any, name: str, gates: int) -> tuple[Tensor, ...]:
    bias: Tensor = getattr(module, name)
    return bias.detach().cpu().double().chunk(gates)


# Backwards


def _need(node: fx.Node, analysis: Analysis) -> None:
    """From the last layer to the first: what is needed of a cell, and what it needs of those below."""
    cells, layers = analysis.hidden[str(node.target)], cell_layers(analysis.module(node))  # type: ignore[arg-type]
    needs, begin = _needs_of_states(node, analysis), initial_states(node, analysis)
    index = len(cells)
    for names in reversed(layers):
        index -= len(names)
        used = []
        for name, cell, needed, number in zip(names, cells[index:], needs[index:], count(index), strict=False):
            inputs, read = _need_cell(node, analysis, name, cell, needed)
            analysis.units.pin(cell.units[(needed & cell.varies) | (read & ~_silent(cell, begin.of_cell(number)))])
            used.append(inputs)
        together = torch.stack(used).any(dim=0)
        if index:
            _need_below(analysis, cells[index - len(names) : index], needs[index - len(names) : index], together)
    begin.need(needs, analysis)
    analysis.need(node.args[0], together)
    analysis.input_uses[str(node.target)] = _input_use(node, analysis, together)


def _needs_of_states(node: fx.Node, analysis: Analysis) -> list[Tensor]:
    """Return what is needed of each cell from outside: of its last states, and at the top of the sequence."""
    module: Any = analysis.module(node)
    sequence, *last = analysis.needs[node]
    sizes, width = cell_sizes(module), len(cell_layers(module)[0])
    needs = [torch.zeros(size, dtype=torch.bool) for size in sizes]
    for number, needed in enumerate(last):
        needs[number % len(sizes)] |= needed
    for needed, part in zip(needs[-width:], torch.split_with_sizes(sequence, sizes[-width:]), strict=True):
        needed |= part
    return needs


def _silent(cell: Channels, states: list[Channels]) -> Tensor:
    """Return the units that are 0, also before the first step: nothing can miss them there; any other constant can."""
    silent = cell.constant == 0
    for state in states:
        silent &= state.constant == 0
    return silent


def _need_cell(node: fx.Node, analysis: Analysis, name: str, cell: Channels, needed: Tensor) -> tuple[Tensor, Tensor]:
    """Add to what is needed of a cell what it needs of itself at the next step.

    Returns the inputs that it uses, and the units that it reads at the next step.
    """
    from_input, recurrent = (analysis.mask(node, f"{kind}_{name}") for kind in ("weight_ih", "weight_hh"))
    gates, read = gate_count(analysis.module(node)), torch.zeros_like(needed)
    while True:
        rows = gate_rows((needed & cell.varies).nonzero().squeeze(1), len(needed), gates)
        read |= recurrent[rows].any(dim=0)
        if not (read & ~needed).any():
            break
        needed |= read
    return from_input[rows].any(dim=0), read


def _need_below(analysis: Analysis, cells: tuple[Channels, ...], needs: list[Tensor], used: Tensor) -> None:
    sizes = [len(cell.units) for cell in cells]
    for cell, needed, part in zip(cells, needs, torch.split_with_sizes(used, sizes), strict=True):
        needed |= part
        analysis.units.pin(cell.units[part & (cell.constant != 0)])


def _input_use(node: fx.Node, analysis: Analysis, used: Tensor) -> InputUse:
    """Return how a recurrent layer uses its inputs: constants are folded into the bias, if there is one."""
    x, none = source(node, analysis, -1), torch.zeros_like(used)
    if not isinstance(x, Channels):
        return InputUse(x, used, used, none)
    foldable = ~x.varies if analysis.module(node).bias else x.constant == 0
    return InputUse(x, used, used & ~foldable, none)


RECURRENT_LAYER = Rule(_recurrent, _need, several=True)
