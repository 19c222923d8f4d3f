"""Attention with fewer heads gives what the whole one gives whose other heads are zero."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import randomize
from torch import Tensor, nn

from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.models.layer_resizing import resized, size_of
from rigl_compress.models.resized_attention import ResizedAttention

HEADS, SIZE = 4, 3
WIDTH = HEADS * SIZE


def pair(kept: tuple[int, ...] = (1, 3), **options: Any) -> tuple[nn.MultiheadAttention, ResizedAttention]:
    """The whole attention, whose other heads reach nothing, and the smaller one."""
    whole = nn.MultiheadAttention(WIDTH, HEADS, **options).eval()
    randomize(whole, 0)
    gone = [head * SIZE + row for head in range(HEADS) if head not in kept for row in range(SIZE)]
    with torch.no_grad():
        whole.out_proj.weight[:, gone] = 0
    small = resized(whole, None, torch.tensor(kept))
    assert isinstance(small, ResizedAttention)
    return whole, small


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-weights": {"need_weights": False},
    "each-head": {"average_attn_weights": False},
    "boolean": {"attn_mask": torch.ones(5, 6).triu(2).bool()},
    "numbers": {"attn_mask": torch.linspace(-1, 1, 30).reshape(5, 6), "need_weights": False},
    "causal": {"attn_mask": torch.ones(5, 6).triu(1).bool(), "is_causal": True, "need_weights": False},
    "of-each-head": {"attn_mask": torch.linspace(-2, 2, 2 * HEADS * 30).reshape(2 * HEADS, 5, 6)},
    "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
    "both": {
        "key_padding_mask": torch.tensor([[0.0] * 6, [0.0] * 4 + [-1.0] * 2]),
        "attn_mask": torch.linspace(-1, 1, 30).reshape(5, 6),
    },
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("batch_first", [False, True])
def test_same_outputs(name: str, batch_first: bool) -> None:
    whole, small = pair(batch_first=batch_first)
    x, y = torch.randn(5, 2, WIDTH), torch.randn(6, 2, WIDTH)
    inputs = [tensor.transpose(0, 1) if batch_first else tensor for tensor in (x, y, y)]
    (expected, weights), (found, left) = whole(*inputs, **CALLS[name]), small(*inputs, **CALLS[name])
    torch.testing.assert_close(found, expected)
    assert (weights is None) == (left is None)
    if CALLS[name].get("average_attn_weights") is False:
        torch.testing.assert_close(left, weights[:, [1, 3]])
    elif weights is not None:
        assert left.shape == weights.shape


@pytest.mark.parametrize("options", [{"bias": False}, {"kdim": 5, "vdim": 7}], ids=str)
def test_forms(options: dict[str, Any]) -> None:
    whole, small = pair(**options)
    inputs = (
        torch.randn(5, WIDTH),
        torch.randn(6, options.get("kdim", WIDTH)),
        torch.randn(6, options.get("vdim", WIDTH)),
    )
    torch.testing.assert_close(small(*inputs)[0], whole(*inputs)[0])
    torch.testing.assert_close(small(*inputs)[1].shape, whole(*inputs)[1].shape)
    assert list(small.state_dict()) == list(whole.state_dict())


def test_heads_go_twice() -> None:
    whole, small = pair((0, 2, 3))
    with torch.no_grad():
        for layer, head in ((whole, 2), (small, 1)):
            layer.out_proj.weight[:, head * SIZE : head * SIZE + SIZE] = 0
    again: Any = resized(small, None, torch.tensor([0, 2]))
    assert (again.heads, again.all_heads, size_of(again)) == ((0, 3), HEADS, (2 * SIZE, 2))
    x, mask = torch.randn(5, 2, WIDTH), torch.randn(2 * HEADS, 5, 5)
    torch.testing.assert_close(again(x, x, x, attn_mask=mask)[0], whole(x, x, x, attn_mask=mask)[0])


def test_a_causal_hint_needs_its_mask() -> None:
    x = torch.randn(5, 2, WIDTH)
    for attention in pair():
        with pytest.raises(RuntimeError, match="Need attn_mask"):
            attention(x, x, x, is_causal=True, need_weights=False)


def test_gradients_are_those_of_the_whole() -> None:
    whole, small = (attention.double() for attention in pair())
    x = torch.randn(5, 2, WIDTH, dtype=torch.float64)
    for attention in (whole, small):
        attention.train()(x, x, x)[0].square().sum().backward()
    rows = [head * SIZE + row for head in (1, 3) for row in range(SIZE)]
    assert whole.in_proj_weight.grad is not None
    torch.testing.assert_close(
        small.in_proj_weight.grad, whole.in_proj_weight.grad[[part * WIDTH + row for part in range(3) for row in rows]]
    )


def test_dropout_of_weights_in_training_only() -> None:
    _, small = pair(dropout=0.5)
    x = torch.randn(5, 2, WIDTH)
    assert torch.equal(small(x, x, x)[0], small(x, x, x)[0])
    small.train()
    assert not torch.equal(small(x, x, x)[0], small(x, x, x)[0])


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.parametrize("first", [True, False])
def test_inside_an_encoder(first: bool) -> None:
    """Also where the encoder packs padded sequences, which it does without gradients."""
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 8, batch_first=True)
    whole = nn.TransformerEncoder(layer, 2).eval()
    chosen: Any = whole.layers[0 if first else 1]
    with torch.no_grad():
        chosen.self_attn.out_proj.weight[:, :SIZE] = 0
    small = deepcopy(whole)
    twin: Any = small.layers[0 if first else 1]
    twin.self_attn = resized(twin.self_attn, None, torch.tensor([1, 2, 3]))
    x, padding = torch.randn(2, 5, WIDTH), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    for mask in (None, padding):
        with torch.no_grad():
            torch.testing.assert_close(small(x, src_key_padding_mask=mask), whole(x, src_key_padding_mask=mask))
        torch.testing.assert_close(small(x, src_key_padding_mask=mask), whole(x, src_key_padding_mask=mask))


class Self(nn.Module):
    """Attention to itself."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


@pytest.mark.slow
def test_it_is_exported(tmp_path: Path) -> None:
    _, small = pair(batch_first=True)
    assert export_onnx(Self(small), torch.randn(2, 5, WIDTH), tmp_path / "small.onnx").difference < 1e-5
