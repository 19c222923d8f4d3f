"""Vision transformers: ViT-Ti and ViT-S of Touvron et al., from images of any size that patches divide."""

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.transformer_sizes import TransformerSizes, draw_weights

CHANNELS = 3


class Block(nn.Module):
    """Attention, then two feed-forward layers, each with a norm before it and a residual around it."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width, eps=1e-6)
        self.attention = nn.MultiheadAttention(sizes.width, sizes.heads, batch_first=True)
        self.norm2 = nn.LayerNorm(sizes.width, eps=1e-6)
        self.fc1 = nn.Linear(sizes.width, sizes.hidden)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(sizes.hidden, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → the same."""
        seen = self.norm1(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        answer: Tensor = x + self.fc2(self.gelu(self.fc1(self.norm2(x))))
        return answer


class VisionTransformer(nn.Module):
    """Patches of an image and a class token, with learned positions; the answer is read from the class token."""

    dense_layers = ("*patches", "*head")  # they are small, and everything passes through them
    numbers: Tensor

    def __init__(self, sizes: TransformerSizes, image: int, patch: int, channels: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, sizes.width, patch, stride=patch)
        self.class_token = nn.Embedding(1, sizes.width)
        self.positions = nn.Embedding((image // patch) ** 2 + 1, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes) for _ in range(sizes.depth)))
        self.norm = nn.LayerNorm(sizes.width, eps=1e-6)
        self.head = nn.Linear(sizes.width, classes)
        self.register_buffer("numbers", torch.arange(self.positions.num_embeddings), persistent=False)
        draw_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """[N, channels, image, image] → [N, classes]."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token(self.numbers[:1]).expand(patches.shape[0], -1, -1)
        x = torch.cat([first, patches], dim=1) + self.positions(self.numbers)
        scores: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return scores


def _vision_transformer(sizes: TransformerSizes, image: int, patch: int, channels: int, classes: int) -> nn.Module:
    if patch < 1 or image < patch or image % patch:
        raise InputError(f"an image of {image} pixels has no whole patches of {patch}: choose a divisor of {image}")
    return VisionTransformer(sizes, image, patch, channels, classes)


@register_model("vit-ti", input_shape=(CHANNELS, 224, 224), classes=1000)
def vit_ti(
    classes: int = 1000,
    width: float = 1.0,
    depth: int = 12,
    heads: int = 3,
    image: int = 224,
    patch: int = 16,
    channels: int = CHANNELS,
) -> nn.Module:
    """ViT-Ti/16: 12 blocks of 192 with 3 heads, 5.7 million parameters."""
    return _vision_transformer(TransformerSizes.scaled(192, width, depth, heads), image, patch, channels, classes)


@register_model("vit-s", input_shape=(CHANNELS, 224, 224), classes=1000)
def vit_s(
    classes: int = 1000,
    width: float = 1.0,
    depth: int = 12,
    heads: int = 6,
    image: int = 224,
    patch: int = 16,
    channels: int = CHANNELS,
) -> nn.Module:
    """ViT-S/16: 12 blocks of 384 with 6 heads, 22 million parameters."""
    return _vision_transformer(TransformerSizes.scaled(384, width, depth, heads), image, patch, channels, classes)
