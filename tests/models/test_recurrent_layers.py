"""Recurrent layers whose cells have different sizes: the same numbers as torch's where sizes are equal, and cuts."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from rigl_compress.core.errors import InputError
from rigl_compress.models.layer_resizing import resized, size_of
from rigl_compress.models.recurrent_layers import CellStates, UnevenGRU, UnevenLSTM, UnevenRNN, cell_sizes

KINDS: dict[str, tuple[Callable[..., nn.RNNBase], type[nn.Module]]] = {
    "gru": (nn.GRU, UnevenGRU),
    "lstm": (nn.LSTM, UnevenLSTM),
    "rnn": (nn.RNN, UnevenRNN),
    "rnn-relu": (lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options), UnevenRNN),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "one": {},
    "deep": {"num_layers": 3, "batch_first": True},
    "both-ways": {"bidirectional": True, "bias": False},
    "deep-both-ways": {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.5},
}


def flat(value: Any) -> list[Tensor]:
    """All numbers of an answer, cell by cell."""
    return [each for part in value for each in flat(part)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("batch", [True, False])
def test_cell_by_cell_gives_what_torch_gives(kind: str, options: dict[str, Any], begun: bool, batch: bool) -> None:
    torch.manual_seed(0)
    build, uneven = KINDS[kind]
    layer, x = build(4, 3, **options).eval(), torch.randn((5, 2, 4) if batch else (5, 4))
    samples = [x.shape[0 if layer.batch_first else 1]] if batch else []
    states = torch.randn(len(cell_sizes(layer)), *samples, 3)
    begin = ((states, states + 1) if kind == "lstm" else states) if begun else None
    other = deepcopy(layer)
    other.__class__ = uneven
    expected, found = flat(layer(x, begin)), flat(other(x, begin))
    assert torch.allclose(expected[0], found[0], atol=1e-6)
    for index, together in enumerate(expected[1:]):
        apart = torch.stack(found[1 + index * len(states) : 1 + (index + 1) * len(states)])
        assert torch.allclose(together, apart, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_cells_of_different_sizes_and_back(kind: str) -> None:
    build, uneven = KINDS[kind]
    layer = build(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    kept = torch.tensor([0, 2, 3, 4, 5, 7, 9, 11])  # units 0 2 | 0 1 2 | 1 | 0 2
    small: Any = resized(layer, torch.tensor([1, 3]), kept)
    assert type(small) is uneven
    assert (cell_sizes(small), size_of(small)) == ([2, 3, 1, 2], (2, 8))
    assert [*small.state_dict()] == [*layer.state_dict()]
    assert small.weight_ih_l1.shape[1] == 5
    assert "[2, 3, 1, 2]" in repr(small)
    output, last = small(torch.randn(6, 5, 2))
    assert output.shape == (6, 5, 3)
    last = last[0] if kind == "lstm" else last
    assert isinstance(last, CellStates)
    assert [state.shape for state in last] == [(6, 2), (6, 3), (6, 1), (6, 2)]
    assert torch.equal(last[-1, :, 1:], last[3][:, 1:])
    even = resized(small, None, torch.tensor([0, 2, 5, 6]))
    assert type(even) is (nn.RNN if kind.startswith("rnn") else getattr(nn, kind.upper()))
    assert even(torch.randn(6, 5, 2))[0].shape == (6, 5, 2)


def test_rows_and_columns_are_those_of_the_units() -> None:
    layer = nn.LSTM(2, 3, num_layers=2)
    small: Any = resized(layer, None, torch.tensor([1, 2, 3, 4, 5]))
    assert torch.equal(small.weight_ih_l0, layer.weight_ih_l0[[1, 2, 4, 5, 7, 8, 10, 11]])
    assert torch.equal(small.weight_hh_l0, layer.weight_hh_l0[[1, 2, 4, 5, 7, 8, 10, 11]][:, [1, 2]])
    assert torch.equal(small.weight_ih_l1, layer.weight_ih_l1[:, [1, 2]])
    assert torch.equal(small.weight_hh_l1, layer.weight_hh_l1)


def test_dropout_between_layers_and_gradients() -> None:
    torch.manual_seed(0)
    layer: Any = resized(nn.GRU(3, 4, num_layers=2, dropout=0.5), None, torch.tensor([0, 1, 2, 4, 5, 6, 7]))
    x = torch.randn(5, 2, 3)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    assert torch.equal(layer.eval()(x)[0], layer(x)[0])
    layer(x)[0].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layer.parameters())


def test_packed_sequences_are_refused() -> None:
    layer = resized(nn.GRU(3, 4, num_layers=2), None, torch.tensor([0, 4, 5]))
    with pytest.raises(InputError, match=r"UnevenGRU reads a PackedSequence, expected a tensor: pad the sequences"):
        layer(pack_sequence([torch.randn(4, 3), torch.randn(2, 3)]))
