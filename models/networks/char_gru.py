"""The character-level language model of the paper: an embedding, a GRU, a readout of two layers."""

import torch
from torch import Tensor, nn

from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.convolutions import channels

VOCABULARY = 256  # bytes


class CharGru(nn.Module):
    """Predicts the next token from all before it.

    The embedding is shared: the last readout is as wide as it, and the scores of the tokens are the products of both.
    """

    def __init__(self, vocabulary: int, width: float) -> None:
        super().__init__()
        embedding, state, hidden = (channels(count, width) for count in (128, 512, 256))
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.gru = nn.GRU(embedding, state, batch_first=True)
        self.readout1 = nn.Linear(state, hidden)
        self.readout2 = nn.Linear(hidden, embedding)
        self.scores = nn.Linear(embedding, vocabulary)
        self.scores.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=embedding**-0.5)  # scores of variance 1 from readouts of variance 1

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, steps] → [N, steps, vocabulary]."""
        states, _ = self.gru(self.embedding(tokens))
        answers: Tensor = self.scores(self.readout2(torch.relu(self.readout1(states))))
        return answers


@register_model("char-gru", input_shape=(512,), classes=VOCABULARY, vocabulary=VOCABULARY)
def char_gru(classes: int = VOCABULARY, width: float = 1.0) -> nn.Module:
    """The paper's character GRU: shared embedding 128, state 512, readouts 256 and 128."""
    return CharGru(classes, width)
