"""What the transformers share: their sizes, and how their weights are drawn."""

from dataclasses import dataclass

import torch
from torch import nn

from rigl_compress.core.errors import InputError

MOST_BLOCKS = 1000  # a file can contain any number
DEVIATION = 0.02  # of all weights at the start, as in BERT and ViT


@dataclass(frozen=True)
class TransformerSizes:
    """Width of the tokens, blocks, heads, and the width of the hidden feed-forward layers."""

    width: int
    depth: int
    heads: int

    def __post_init__(self) -> None:
        if self.heads < 1 or not 1 <= self.depth <= MOST_BLOCKS:
            raise InputError(
                f"a transformer has {self.depth} blocks with {self.heads} heads, expected 1 to {MOST_BLOCKS} blocks, "
                "each with at least one head"
            )

    @property
    def hidden(self) -> int:
        """The width of the hidden feed-forward layers."""
        return 4 * self.width

    @classmethod
    def scaled(cls, width: int, factor: float, depth: int, heads: int) -> "TransformerSizes":
        """Scale a width, rounded to whole heads.

        >>> TransformerSizes.scaled(192, 0.5, 12, 3).width, TransformerSizes.scaled(192, 0.01, 12, 3).width
        (96, 3)
        """
        return cls(max(1, round(width * factor / max(1, heads))) * heads, depth, heads)


@torch.no_grad()
def draw_weights(model: nn.Module) -> None:
    """Draw all weights from a normal distribution cut off at two deviations; biases start at zero."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.trunc_normal_(parameter, std=DEVIATION, a=-2 * DEVIATION, b=2 * DEVIATION)
        elif name.endswith("bias"):
            parameter.zero_()
