"""An encoder of texts like BERT: tokens with learned positions, attention in both directions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.transformer_sizes import TransformerSizes, draw_weights

VOCABULARY = 257  # bytes, and the token that masks one
POSITIONS = 512  # the longest sequence


class SelfAttention(nn.Module):
    """Attention with separate layers for queries, keys and values, as pretrained encoders have them."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.query, self.key, self.value = (nn.Linear(sizes.width, sizes.width) for _ in range(3))
        self.output = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → the same."""
        q, k, v = (self._by_head(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        answer: Tensor = self.output(mixed)
        return answer

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)


class EncoderBlock(nn.Module):
    """Attention, then two feed-forward layers, each with a residual around it and a norm after it."""

    def __init__(self, sizes: TransformerSizes) -> None:
        super().__init__()
        self.attention = SelfAttention(sizes)
        self.norm1 = nn.LayerNorm(sizes.width, eps=1e-12)
        self.fc1 = nn.Linear(sizes.width, sizes.hidden)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(sizes.hidden, sizes.width)
        self.norm2 = nn.LayerNorm(sizes.width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """[N, tokens, width] → the same."""
        x = self.norm1(x + self.attention(x))
        answer: Tensor = self.norm2(x + self.fc2(self.gelu(self.fc1(x))))
        return answer


class Encoder(nn.Module):
    """Embeddings and blocks."""

    numbers: Tensor

    def __init__(self, sizes: TransformerSizes, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, sizes.width)
        self.positions = nn.Embedding(positions, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.blocks = nn.Sequential(*(EncoderBlock(sizes) for _ in range(sizes.depth)))
        self.register_buffer("numbers", torch.arange(positions), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, tokens] → [N, tokens, width]."""
        places = self.positions(self.numbers.narrow(0, 0, tokens.shape[1]))
        answer: Tensor = self.blocks(self.norm(self.embedding(tokens) + places))
        return answer


class MaskedLanguageModel(nn.Module):
    """Scores every token at every place; the last layer shares the weights of the embedding."""

    def __init__(self, sizes: TransformerSizes, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.encoder = Encoder(sizes, vocabulary, positions)
        self.transform = nn.Linear(sizes.width, sizes.width)
        self.gelu = nn.GELU()
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.scores = nn.Linear(sizes.width, vocabulary)
        self.scores.weight = self.encoder.embedding.weight
        draw_weights(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, tokens] → [N, tokens, vocabulary]."""
        scores: Tensor = self.scores(self.norm(self.gelu(self.transform(self.encoder(tokens)))))
        return scores


class TextClassifier(nn.Module):
    """One answer for a whole text, read from its first token."""

    dense_layers = ("*head",)

    def __init__(self, sizes: TransformerSizes, vocabulary: int, positions: int, classes: int) -> None:
        super().__init__()
        self.encoder = Encoder(sizes, vocabulary, positions)
        self.pool = nn.Linear(sizes.width, sizes.width)
        self.head = nn.Linear(sizes.width, classes)
        draw_weights(self)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, tokens] → [N, classes]."""
        scores: Tensor = self.head(torch.tanh(self.pool(self.encoder(tokens)[:, 0])))
        return scores


@register_model("bert-small", input_shape=(128,), classes=VOCABULARY, vocabulary=VOCABULARY)
def bert_small(
    classes: int = VOCABULARY, width: float = 1.0, depth: int = 6, heads: int = 12, positions: int = POSITIONS
) -> nn.Module:
    """A masked language model: 6 blocks of 384 with 12 heads; `classes` is the number of tokens, bytes by default."""
    return MaskedLanguageModel(TransformerSizes.scaled(384, width, depth, heads), classes, positions)


@register_model("bert-small-classifier", input_shape=(128,), classes=2, vocabulary=VOCABULARY)
def bert_small_classifier(
    classes: int = 2,
    vocabulary: int = VOCABULARY,
    width: float = 1.0,
    depth: int = 6,
    heads: int = 12,
    positions: int = POSITIONS,
) -> nn.Module:
    """A classifier of texts: the encoder of bert-small, and one answer for each text."""
    return TextClassifier(TransformerSizes.scaled(384, width, depth, heads), vocabulary, positions, classes)
