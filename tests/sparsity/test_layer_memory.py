"""What a sparsifier keeps beside weights, gradients and optimizer state: a byte for each weight."""

import pytest
import torch
from small_training import Loop

from rigl_compress.sparsity.layer_state import Layer


def kept(layer: Layer) -> int:
    """Return the bytes of all tensors that a layer holds, its weight left out."""
    tensors = [each for name, each in vars(layer).items() if torch.is_tensor(each) and name != "parameter"]
    return sum(each.numel() * each.element_size() for each in (*tensors, *layer.memory.values()))


@pytest.mark.parametrize("method", ["rigl", "set", "static", "pruning", "snip", "dsr"])
def test_a_byte_for_each_weight(method: str) -> None:
    loop = Loop(method=method, interval=2).train(7)
    layers = loop.sparse._layers.layers
    assert [kept(layer) for layer in layers] == [layer.size for layer in layers]


def test_positions_are_those_of_the_mask() -> None:
    loop = Loop(interval=2).train(7)
    for layer in loop.sparse._layers.layers:
        assert torch.equal(layer.positions, layer.mask.view(-1).nonzero().squeeze(1))
        assert layer.active == len(layer.positions)
