"""Small transformers with attention written in every usual way, and masks that leave heads and hidden units dead."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.topology import Topology

HEADS, SIZE, HIDDEN = 4, 4, 20
WIDTH = HEADS * SIZE


def by_view(self: Any, x: Tensor) -> list[Tensor]:
    batch, length, _ = x.shape
    layers = (self.q, self.k, self.v)
    return [layer(x).view(batch, length, HEADS, SIZE).transpose(1, 2) for layer in layers]


def by_free_view(self: Any, x: Tensor) -> list[Tensor]:
    return [layer(x).view(*x.shape[:-1], -1, SIZE).transpose(1, 2) for layer in (self.q, self.k, self.v)]


def by_unflatten(self: Any, x: Tensor) -> list[Tensor]:
    return [layer(x).unflatten(-1, (HEADS, SIZE)).permute(0, 2, 1, 3) for layer in (self.q, self.k, self.v)]


def by_permute(self: Any, x: Tensor) -> Any:
    batch, length, _ = x.shape
    return self.qkv(x).reshape(batch, length, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4).unbind(0)


def by_index(self: Any, x: Tensor) -> list[Tensor]:
    batch, length, _ = x.shape
    packed = self.qkv(x).reshape(batch, length, 3, HEADS, SIZE).permute(2, 0, 3, 1, 4)
    return [packed[0], packed[1] * 1.0, packed[2]]


def by_chunk(self: Any, x: Tensor) -> list[Tensor]:
    q, k, v = self.qkv(x).chunk(3, dim=-1)
    return [part.reshape(x.shape[0], x.shape[1], HEADS, SIZE).transpose(1, 2) for part in (q, k, v)]


def fused(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    del self
    return F.scaled_dot_product_attention(q, k, v)


def causal(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    del self
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.0, scale=0.3)


def explicit(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    return torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v)


def masked(self: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q / 2.0, k.transpose(2, 3)).masked_fill(self.future, float("-inf"))
    return scores.softmax(-1) @ v


class Attending(nn.Module):
    """A block with attention and a feed-forward part, both residual, and a readout."""

    def __init__(self, heads: Callable[..., Any] = by_view, attend: Callable[..., Tensor] = fused) -> None:
        super().__init__()
        self.heads, self.attend = heads, attend
        self.embed, self.norm1, self.norm2 = nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        if heads in (by_permute, by_index, by_chunk):
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        else:
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.o, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1)
        self.first, self.second, self.readout = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH), nn.Linear(WIDTH, 3)
        self.register_buffer("future", torch.ones(5, 5, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.heads(self, self.norm1(x))
        x = x + self.o(self.attend(self, q, k, v).transpose(1, 2).flatten(2))
        x = x + self.second(self.dropout(F.gelu(self.first(self.norm2(x)))))
        result: Tensor = self.readout(x.mean(1))
        return result


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, torch's encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, WIDTH)), nn.Parameter(torch.zeros(1, 5, WIDTH))
        self.encoder, self.readout = encoder(norm_first=True), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), patches], dim=1) + self.positions
        result: Tensor = self.readout(self.encoder(tokens)[:, 0])
        return result


def encoder(layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    """Torch's encoder, without its warning that nested tensors are not used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, **{"batch_first": True, **options})
        return nn.TransformerEncoder(layer, layers)


ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "view": lambda: Attending(by_view),
    "free-view": lambda: Attending(by_free_view),
    "unflatten": lambda: Attending(by_unflatten, causal),
    "permute": lambda: Attending(by_permute),
    "index": lambda: Attending(by_index, causal),
    "chunk": lambda: Attending(by_chunk),
    "explicit": lambda: Attending(by_view, explicit),
    "explicit-packed": lambda: Attending(by_permute, explicit),
    "masked": lambda: Attending(by_free_view, masked),
}


def rows(heads: list[int]) -> list[int]:
    """The rows of some heads."""
    return [head * SIZE + row for head in heads for row in range(SIZE)]


def masks_of(model: nn.Module, density: float = 0.8) -> dict[str, Tensor]:
    """Random masks of all matrices, by name."""
    return {
        name: torch.rand(parameter.shape) < density
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2
    }


def without(masks: dict[str, Tensor], silent: list[int], unread: list[int], hidden: list[int]) -> Topology:
    """Make heads silent (constant values), leave heads unread, and hidden units without inputs, in every block."""
    for name, mask in masks.items():
        path = name.removesuffix(".weight")
        if path.endswith(("v", "v_lin", "value", "v_proj", "v_proj_weight")):
            mask[rows(silent)] = False
        if path.endswith(("qkv", "in_proj_weight")):
            mask[[2 * WIDTH + row for row in rows(silent)]] = False
        if path.split(".")[-1] in ("o", "out_proj", "out_lin", "o_proj") or path.endswith("attention.output.dense"):
            mask[:, rows(unread)] = False
        if path.endswith(("first", "linear1", "lin1", "fc1", "intermediate.dense")):
            mask[hidden] = False
    return Topology.from_masks(masks)
