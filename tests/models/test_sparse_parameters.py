"""Layers as people name them."""

import pytest
import torch
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_parameters import (
    layer_shapes,
    layer_types,
    left_dense,
    match_layers,
    shapes_of,
    sparse_layers,
    sparse_parameters,
)


class Net(nn.Module):
    """Convolutions, a norm, a recurrent layer, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv1d(4, 4, 1))
        self.gru = nn.GRU(4, 3)
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(3, 2)
        self.tied = nn.Linear(3, 2)
        self.tied.weight = self.head.weight


NAMES = ["stem.weight", "block.0.weight", "block.2.weight", "gru.weight_ih_l0", "gru.weight_hh_l0", "head.weight"]


@pytest.fixture(scope="module")
def net() -> Net:
    return Net()


def match(net: Net, pattern: str) -> list[str]:
    return match_layers(pattern, sparse_parameters(net), layer_types(net))


def test_weights_in_order_without_norms_biases_embeddings_and_doubles(net: Net) -> None:
    assert list(sparse_parameters(net)) == NAMES


def test_they_are_the_parameters_themselves(net: Net) -> None:
    parameters = dict(net.named_parameters())
    assert all(parameter is parameters[name] for name, parameter in sparse_parameters(net).items())


def test_a_layer_on_its_own_has_no_path() -> None:
    layer = nn.Linear(2, 1)
    assert list(sparse_parameters(layer)) == ["weight"]
    assert layer_types(layer) == {"weight": "Linear", "bias": "Linear"}
    assert match_layers("Linear", sparse_parameters(layer), layer_types(layer)) == ["weight"]
    assert match_layers("first", sparse_parameters(layer), layer_types(layer)) == ["weight"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("stem.weight", ["stem.weight"]),
        ("stem", ["stem.weight"]),
        ("block.0", ["block.0.weight"]),
        ("block.*", ["block.0.weight", "block.2.weight"]),
        ("block*", ["block.0.weight", "block.2.weight"]),
        ("gru", ["gru.weight_ih_l0", "gru.weight_hh_l0"]),
        ("*.weight_hh_l?", ["gru.weight_hh_l0"]),
        ("Conv2d", ["stem.weight", "block.0.weight"]),
        ("GRU", ["gru.weight_ih_l0", "gru.weight_hh_l0"]),
        ("first", ["stem.weight"]),
        ("last", ["head.weight"]),
        ("[bh]*", ["block.0.weight", "block.2.weight", "head.weight"]),
        ("*", NAMES),
    ],
)
def test_matching(net: Net, pattern: str, found: list[str]) -> None:
    assert match(net, pattern) == found


@pytest.mark.parametrize("pattern", ["Stem", "BatchNorm2d", "block", "weight", "embedding", "conv?", ""])
def test_what_matches_nothing_is_an_error(net: Net, pattern: str) -> None:
    with pytest.raises(InputError) as caught:
        match(net, pattern)
    assert f"layer {pattern!r} matches nothing: " in str(caught.value)
    assert "nown: block.0, block.2, gru" in str(caught.value)


def test_the_nearest_layer_is_suggested(net: Net) -> None:
    with pytest.raises(InputError, match="layer 'steam' matches nothing: did you mean 'stem'"):
        match(net, "steam")


def test_first_and_last_of_nothing_are_an_error() -> None:
    with pytest.raises(InputError, match="layer 'first' matches nothing"):
        match_layers("first", [], {})


def test_shapes() -> None:
    assert shapes_of({"a": torch.empty(2, 3), "b": torch.empty(4)}) == {"a": (2, 3), "b": (4,)}


# Gates

GATES = ["reset", "update", "new"]


def gates(*weights: str) -> list[str]:
    return [f"gru.{weight}.{gate}" for weight in weights for gate in GATES]


def test_the_gates_of_recurrent_weights_are_layers_of_their_own(net: Net) -> None:
    layers = list(sparse_layers(net))
    assert layers == [*NAMES[:3], *gates("weight_ih_l0", "weight_hh_l0"), "head.weight"]
    assert {name: shape for name, shape in layer_shapes(net).items() if "gru" in name} == {
        **dict.fromkeys(gates("weight_ih_l0"), (3, 4)),
        **dict.fromkeys(gates("weight_hh_l0"), (3, 3)),
    }


def test_the_parts_make_up_the_whole(net: Net) -> None:
    parameters = sparse_parameters(net)
    for name, parameter in parameters.items():
        parts = [part.of(parameter) for part in sparse_layers(net).values() if part.parameter == name]
        assert torch.equal(torch.cat(parts), parameter)
        assert parts[0].untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()


def test_the_rows_are_those_that_torch_computes_the_gate_with() -> None:
    """Without its update gate (z = σ(−∞) = 0) a GRU is its new gate, which only the last rows reach."""
    gru = nn.GRU(4, 3)
    parts, weights = sparse_layers(gru), dict(gru.named_parameters())
    with torch.no_grad():
        gru.bias_ih_l0[3:6] = -1e9
        for name, part in parts.items():
            part.of(weights[part.parameter]).fill_(1.0 if name == "weight_ih_l0.new" else 0.0)
        gru.bias_ih_l0[6:] = 0
        gru.bias_hh_l0[:] = 0
    x = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    torch.testing.assert_close(gru(x)[0][0], torch.full((3,), 1.0).tanh(), rtol=1e-6, atol=1e-6)


def test_an_lstm_has_four_gates_and_a_projection_none() -> None:
    layers = sparse_layers(nn.LSTM(4, 6, proj_size=2))
    assert [name for name in layers if "ih" in name] == [
        f"weight_ih_l0.{gate}" for gate in ("input", "forget", "cell", "output")
    ]
    assert layers["weight_hr_l0"].rows is None
    assert list(sparse_layers(nn.RNN(4, 6))) == ["weight_ih_l0", "weight_hh_l0"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("gru", gates("weight_ih_l0", "weight_hh_l0")),
        ("GRU", gates("weight_ih_l0", "weight_hh_l0")),
        ("gru.weight_hh_l0", gates("weight_hh_l0")),
        ("gru.weight_hh_l0.new", ["gru.weight_hh_l0.new"]),
        ("*.update", ["gru.weight_ih_l0.update", "gru.weight_hh_l0.update"]),
        ("first", ["stem.weight"]),
    ],
)
def test_matching_gates(net: Net, pattern: str, found: list[str]) -> None:
    assert match_layers(pattern, sparse_layers(net), layer_types(net)) == found


def test_the_first_layer_is_a_whole_weight() -> None:
    gru = nn.GRU(4, 3)
    assert match_layers("first", sparse_layers(gru), layer_types(gru)) == [f"weight_ih_l0.{gate}" for gate in GATES]
    assert match_layers("last", sparse_layers(gru), layer_types(gru)) == [f"weight_hh_l0.{gate}" for gate in GATES]


def test_a_readout_that_is_tied_to_an_embedding_stays_dense() -> None:
    net = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5))
    net[2].weight = net[0].weight
    assert list(sparse_parameters(net)) == ["1.weight"]


# Attention


def test_queries_keys_and_values_are_layers_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.MultiheadAttention(6, 2))
    packed = [f"1.in_proj_weight.{part}" for part in "qkv"]
    assert list(sparse_layers(model)) == ["0.weight", *packed, "1.out_proj.weight"]
    assert [layer_shapes(model)[name] for name in packed] == [(6, 6)] * 3
    assert not left_dense(model)


def test_separate_queries_keys_and_values() -> None:
    model = nn.MultiheadAttention(6, 2, kdim=4, vdim=3)
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    assert list(sparse_parameters(model)) == list(sparse_layers(model)) == names
    assert list(layer_shapes(model).values()) == [(6, 6), (6, 4), (6, 3), (6, 6)]


def test_the_rows_are_those_that_torch_computes_the_values_with() -> None:
    """With equal queries and keys all weights of the attention are equal: the output is the mean of the values."""
    model = nn.MultiheadAttention(4, 2, bias=False)
    parts, weights = sparse_layers(model), dict(model.named_parameters())
    with torch.no_grad():
        for name, part in parts.items():
            value = torch.eye(4) * (0 if name.endswith((".q", ".k")) else 1)
            part.of(weights[part.parameter]).copy_(value)
    x = torch.randn(3, 1, 4)
    torch.testing.assert_close(model(x, x, x)[0], x.mean(0, keepdim=True).expand(3, 1, 4))


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("0.in_proj_weight.v", ["v"]),
        ("*.q", ["q"]),
        ("0.in_proj_weight", ["q", "k", "v"]),
        ("0", ["q", "k", "v"]),
        ("MultiheadAttention", ["q", "k", "v"]),
        ("first", ["q", "k", "v"]),
        ("0*", ["q", "k", "v", "out_proj"]),
        ("Linear", ["out_proj", "1"]),
        ("last", ["1"]),
    ],
)
def test_matching_in_attention(pattern: str, found: list[str]) -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.Linear(4, 2))
    names = {"out_proj": "0.out_proj.weight", "1": "1.weight", **{part: f"0.in_proj_weight.{part}" for part in "qkv"}}
    assert match_layers(pattern, sparse_layers(model), layer_types(model)) == [names[each] for each in found]


# Transposed convolutions and cells


def test_transposed_convolutions_and_cells_can_be_sparse() -> None:
    model = nn.ModuleDict({"up": nn.ConvTranspose2d(3, 5, 2), "cell": nn.LSTMCell(4, 2), "plain": nn.RNNCell(4, 2)})
    gates = [f"cell.{weight}.{gate}" for weight in ("weight_ih", "weight_hh") for gate in LSTM]
    assert list(sparse_layers(model)) == ["up.weight", *gates, "plain.weight_ih", "plain.weight_hh"]
    assert not left_dense(model)


LSTM = ("input", "forget", "cell", "output")
