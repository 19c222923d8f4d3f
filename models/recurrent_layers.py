"""GRU, LSTM and RNN layers by cells, one for each layer and direction, and layers whose cells have different sizes.

torch's recurrent layers have one hidden size for all cells. Where pruning leaves the cells different sizes, the layer
becomes an `UnevenGRU`, `UnevenLSTM` or `UnevenRNN`: the same parameters under the same names, run cell by cell.
"""

from typing import Any

import torch
from torch import _VF, Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.models.parameter_cutting import Kept, count, cut, positions_together, positions_within

_GATES: dict[type[nn.RNNBase], int] = {nn.GRU: 3, nn.LSTM: 4, nn.RNN: 1}
_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def gate_count(module: nn.Module) -> int:
    """Return how many gates a cell stacks in its matrices."""
    return next(gates for kind, gates in _GATES.items() if isinstance(module, kind))


def cell_layers(module: nn.RNNBase) -> list[list[str]]:
    """Return the names of the cells, as in the names of their parameters, layer by layer.

    >>> cell_layers(nn.GRU(4, 3, num_layers=2, bidirectional=True))
    [['l0', 'l0_reverse'], ['l1', 'l1_reverse']]
    """
    ways = ("", "_reverse") if module.bidirectional else ("",)
    return [[f"l{number}{way}" for way in ways] for number in range(module.num_layers)]


def cell_sizes(module: nn.RNNBase) -> list[int]:
    """Return the number of hidden units of each cell, in the order of torch's last states.

    >>> cell_sizes(nn.LSTM(4, 3, bidirectional=True))
    [3, 3]
    """
    return [getattr(module, f"weight_hh_{cell}").shape[1] for layer in cell_layers(module) for cell in layer]


def gate_rows(kept: Tensor, hidden: int, gates: int) -> Tensor:
    """Return the rows of a cell's gates that belong to some hidden units.

    >>> gate_rows(torch.tensor([0, 2]), 3, gates=3).tolist()
    [0, 2, 3, 5, 6, 8]
    """
    return torch.cat([kept + gate * hidden for gate in range(gates)])


def resize_recurrent(layer: Any, inputs: Kept, outputs: Kept) -> None:
    """Keep some inputs and hidden units of a recurrent layer; its units are those of all cells, counted as one list."""
    sizes, cells = cell_sizes(layer), [cell for cells in cell_layers(layer) for cell in cells]
    kept, width, read = positions_within(outputs, sizes), len(cell_layers(layer)[0]), inputs
    for index, cell in enumerate(cells):
        if index and index % width == 0:
            read = positions_together(kept[index - width : index], sizes[index - width : index])
        _cut_cell(layer, cell, read, kept[index])
    layer.input_size = count(inputs, layer.input_size)
    _set_sizes(layer)


def _cut_cell(layer: nn.RNNBase, cell: str, inputs: Kept, units: Kept) -> None:
    hidden = getattr(layer, f"weight_hh_{cell}").shape[1]
    rows = None if units is None else gate_rows(units, hidden, gate_count(layer))
    for name in _PARAMETERS:
        cut(layer, f"{name}_{cell}", 0, rows)
    cut(layer, f"weight_ih_{cell}", 1, inputs)
    cut(layer, f"weight_hh_{cell}", 1, units)


def _set_sizes(layer: Any) -> None:
    sizes = cell_sizes(layer)
    kind = next(kind for kind in _UNEVEN if isinstance(layer, kind))
    layer.__class__ = kind if len({*sizes}) == 1 else _UNEVEN[kind]
    layer.hidden_size = max(sizes)
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]


# Layers with cells of different sizes


class CellStates(tuple[Tensor, ...]):
    """The states of cells of different sizes, which are indexed as torch's tensor of states: states[-1, :, :]."""

    def __getitem__(self, index: Any) -> Any:
        """Return the state of a cell."""
        cell, *rest = index if isinstance(index, tuple) else (index,)
        state = super().__getitem__(cell)
        return state[tuple(rest)] if rest else state


class UnevenGRU(nn.GRU):
    """A GRU whose cells have different sizes: the last states are one tensor [N, units] for each cell."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """[…, features] → […, units of the last layer] and the last states."""
        output, (last,) = _run(self, input, () if hx is None else (hx,))
        return output, last

    def extra_repr(self) -> str:
        """Return the sizes of the cells instead of the hidden size."""
        return _described(self)


class UnevenRNN(nn.RNN):
    """An RNN whose cells have different sizes."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """[…, features] → […, units of the last layer] and the last states."""
        output, (last,) = _run(self, input, () if hx is None else (hx,))
        return output, last

    def extra_repr(self) -> str:
        """Return the sizes of the cells instead of the hidden size."""
        return _described(self)


class UnevenLSTM(nn.LSTM):
    """An LSTM whose cells have different sizes: the last states are two tensors [N, units] for each cell."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """[…, features] → […, units of the last layer] and the last states."""
        return _run(self, input, () if hx is None else hx)

    def extra_repr(self) -> str:
        """Return the sizes of the cells instead of the hidden size."""
        return _described(self)


Uneven = UnevenGRU | UnevenLSTM | UnevenRNN
_UNEVEN: dict[type[nn.RNNBase], type[nn.RNNBase]] = {nn.GRU: UnevenGRU, nn.LSTM: UnevenLSTM, nn.RNN: UnevenRNN}


def _described(layer: Any) -> str:
    return f"{layer.input_size}, {cell_sizes(layer)}, batch_first={layer.batch_first}, dropout={layer.dropout}"


def _run(layer: Any, input: Any, states: Any) -> tuple[Tensor, tuple[CellStates, ...]]:
    """Run all cells; states and last states are one collection per kind of state (h, c), with a tensor per cell."""
    if not isinstance(input, Tensor):
        raise InputError(f"{type(layer).__name__} reads a {type(input).__name__}, expected a tensor: pad the sequences")
    batch = 0 if layer.batch_first else 1
    x, last = (input if input.dim() == 3 else input.unsqueeze(batch)), list[list[Tensor]]()
    for number, cells in enumerate(cell_layers(layer)):
        if number and layer.dropout:
            x = F.dropout(x, layer.dropout, layer.training)
        outputs = []
        for cell in cells:
            begin = [_state(each[len(last)]) for each in states] or _zeros(layer, x, cell)
            output, *final = _run_cell(layer, x, begin, cell)
            outputs.append(output)
            last.append([state.squeeze(0) for state in final])
        x = torch.cat(outputs, dim=-1)
    if input.dim() == 2:
        x, last = x.squeeze(batch), [[state.squeeze(0) for state in final] for final in last]
    return x, tuple(CellStates(kind) for kind in zip(*last, strict=True))


def _state(state: Tensor) -> Tensor:
    """[N, units], or [units] without a batch → [1, N, units]."""
    return state.unsqueeze(0) if state.dim() == 2 else state[None, None]


def _zeros(layer: nn.RNNBase, x: Tensor, cell: str) -> list[Tensor]:
    size, batch = getattr(layer, f"weight_hh_{cell}").shape[1], x.shape[0 if layer.batch_first else 1]
    return [x.new_zeros(1, batch, size)] * (2 if isinstance(layer, nn.LSTM) else 1)


def _run_cell(layer: Any, x: Tensor, states: list[Tensor], cell: str) -> Any:
    steps = 1 if layer.batch_first else 0
    weights = [getattr(layer, f"{name}_{cell}") for name in _PARAMETERS if hasattr(layer, f"{name}_{cell}")]
    begin = states if isinstance(layer, nn.LSTM) else states[0]
    backwards = cell.endswith("_reverse")
    function: Any = getattr(_VF, "rnn_" + layer.nonlinearity if isinstance(layer, nn.RNN) else layer.mode.lower())
    output, *last = function(
        x.flip(steps) if backwards else x, begin, weights, layer.bias, 1, 0.0, layer.training, False, layer.batch_first
    )
    return (output.flip(steps) if backwards else output, *last)
