"""Smaller copies of layers compute what the whole layer computes on the slices."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.layer_resizing import can_select, folding, resized, selecting, size_of, widen

INPUTS, OUTPUTS = torch.tensor([0, 2, 3]), torch.tensor([1, 4])


def zeroed(layer: nn.Module, x: Tensor, axis: int) -> Tensor:
    """What the whole layer gives when the inputs that go are silent."""
    silent = torch.zeros_like(x).index_copy(axis, INPUTS, x.index_select(axis, INPUTS))
    result: Tensor = layer(silent)
    return result


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(5, 6), (2, 5), 1),
    "linear-no-bias": (lambda: nn.Linear(5, 6, bias=False), (2, 3, 5), 2),
    "conv1d": (lambda: nn.Conv1d(5, 6, 3, padding=1), (2, 5, 7), 1),
    "conv2d": (lambda: nn.Conv2d(5, 6, 3, stride=2, padding=1, padding_mode="circular"), (2, 5, 7, 7), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_weighted_layers(name: str) -> None:
    build, shape, axis = LAYERS[name]
    layer, x = build(), torch.randn(shape)
    small = resized(layer, INPUTS, OUTPUTS)
    got = small(x.index_select(axis, INPUTS))
    assert torch.allclose(got, zeroed(layer, x, axis).index_select(axis, OUTPUTS), atol=1e-6)
    assert (size_of(layer), size_of(small)) == ((5, 6), (3, 2))
    assert torch.equal(resized(layer, None, None)(x), layer(x))


@pytest.mark.parametrize("name", LAYERS)
def test_selecting_layers_take_the_whole_input(name: str) -> None:
    build, shape, axis = LAYERS[name]
    layer, x = build(), torch.randn(shape)
    small = selecting(resized(layer, INPUTS, OUTPUTS), INPUTS)
    assert torch.allclose(small(x), zeroed(layer, x, axis).index_select(axis, OUTPUTS), atol=1e-6)
    if name != "linear-no-bias":
        assert torch.allclose(small(x[0]), small(x)[0], atol=1e-6)  # without a batch
    fewer = selecting(resized(small, torch.tensor([1]), None), torch.tensor([1]))
    assert fewer.index.tolist() == [2]
    assert list(fewer.state_dict()) == [*layer.state_dict(), "index"]
    assert can_select(layer)
    assert can_select(fewer)


@pytest.mark.parametrize("read", [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 2, 3], [0, 2, 3, 4]])
@pytest.mark.parametrize("name", LAYERS)
def test_a_selecting_layer_reads_more_than_it_needs(name: str, read: list[int]) -> None:
    """What it reads beside that meets zeros: all inputs, one run of them, or some."""
    build, shape, _ = LAYERS[name]
    x, needed = torch.randn(shape), torch.tensor([0, 2, 3])
    layer: Any = selecting(resized(build(), needed, OUTPUTS), needed)
    before, positions = layer(x), torch.tensor(read)
    widen(layer, positions, 5)
    assert torch.allclose(layer(x), before, atol=1e-6)
    assert size_of(layer) == (len(read), 2)
    unneeded = layer.weight[:, ~torch.isin(positions, needed)]
    assert not unneeded.any()
    assert (type(layer) is type(build())) == (len(read) == 5)
    assert ("index" in layer.state_dict()) == (read in ([0, 2, 3], [0, 2, 3, 4]))


def test_a_selecting_layer_is_where_its_weights_are() -> None:
    with torch.device("meta"):
        small = selecting(resized(nn.Linear(5, 6), INPUTS, None), INPUTS)
    assert small.index.device.type == "meta"  # type: ignore[union-attr]


def test_grouped_convolution() -> None:
    layer, x = nn.Conv2d(8, 12, 3, groups=4), torch.randn(2, 8, 5, 5)
    inputs, outputs = torch.tensor([2, 3, 6, 7]), torch.tensor([3, 4, 5, 9, 10, 11])
    small = resized(layer, inputs, outputs)
    assert (small.groups, size_of(small)) == (2, (4, 6))
    assert torch.allclose(small(x[:, inputs]), layer(x)[:, outputs], atol=1e-6)
    last = resized(layer, torch.tensor([3]), torch.tensor([3, 5]))  # one input and two outputs of the second group
    assert (last.groups, tuple(last.weight.shape)) == (1, (2, 1, 3, 3))
    assert torch.equal(last.weight, layer.weight[[3, 5], 1:])


def test_norms() -> None:
    x = torch.randn(3, 6, 4, 4)
    for norm in (nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False), nn.GroupNorm(6, 6), nn.PReLU(6)):
        with torch.no_grad():
            for tensor in (*norm.parameters(), *norm.buffers()):
                if tensor.is_floating_point():
                    tensor.uniform_(0.5, 1.5)
        small = resized(norm.eval(), None, OUTPUTS)
        assert torch.allclose(small(x[:, OUTPUTS]), norm(x)[:, OUTPUTS], atol=1e-6)
        assert size_of(small) == (0, 2)
    groups = resized(nn.GroupNorm(3, 6), None, torch.tensor([0, 1, 4, 5]))
    assert (groups.num_groups, groups.num_channels) == (2, 4)


def test_embedding() -> None:
    layer = nn.Embedding(9, 6)
    small, tokens = resized(layer, None, OUTPUTS), torch.tensor([1, 5])
    assert torch.equal(small(tokens), layer(tokens)[:, OUTPUTS])
    assert size_of(small) == (0, 2)


@pytest.mark.parametrize("bias", [True, False])
def test_gru(bias: bool) -> None:
    layer, x = nn.GRU(5, 6, batch_first=True, bias=bias), torch.randn(2, 7, 5)
    with torch.no_grad():  # nothing listens to the units that go
        layer.weight_hh_l0[:, [0, 2, 3, 5]] = 0
    small = resized(layer, INPUTS, OUTPUTS)
    assert torch.allclose(small(x[..., INPUTS])[0], zeroed_sequence(layer, x)[..., OUTPUTS], atol=1e-6)
    assert size_of(small) == (3, 2)
    assert folding(layer) == [("weight_ih_l0", "bias_ih_l0")]


def zeroed_sequence(layer: nn.GRU, x: Tensor) -> Tensor:
    silent = torch.zeros_like(x).index_copy(2, INPUTS, x.index_select(2, INPUTS))
    result: Tensor = layer(silent)[0]
    return result


def test_what_has_no_smaller_copy() -> None:
    with pytest.raises(InputError, match="a layer of type Bilinear cannot be resized"):
        resized(nn.Bilinear(2, 2, 2), None, OUTPUTS)
    with pytest.raises(InputError, match="a layer of type Tanh cannot be resized"):
        size_of(nn.Tanh())
    assert not can_select(nn.GRU(2, 2))
