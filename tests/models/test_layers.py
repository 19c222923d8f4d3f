"""Layers as people name them."""

import pytest
import torch
from torch import nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.layers import layer_types, match_layers, shapes_of, sparse_parameters


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
