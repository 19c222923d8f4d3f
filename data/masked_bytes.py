"""Texts with masked bytes: an encoder guesses them from the bytes on both sides, as BERT is trained (Devlin et al.)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.core.random_generators import generator as generator_of
from rigl_compress.data.byte_sequences import BYTES, Sequences
from rigl_compress.data.samples import IGNORED, Batches

MASK = BYTES  # the token that replaces a masked byte
SHARE = 0.15
HIDDEN, REPLACED = 0.8, 0.1  # of the bytes to be guessed: so many are masked, or another byte; the rest stay


@dataclass(frozen=True, eq=False)
class MaskedSequences:
    """Sequences of a text in which a share of the bytes is to be guessed; targets of all others are `IGNORED`.

    Each epoch of training masks other bytes, drawn from its generator. For evaluation the bytes that are masked depend
    on the place of the sequence in the text alone.
    """

    text: Sequences
    share: float = SHARE

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"data.options.mask is {self.share}, expected a share between 0 and 1, e.g. {SHARE}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The length of a sequence."""
        return self.text.input_shape

    @property
    def labels(self) -> tuple[int, int]:
        """Any byte may be masked."""
        return self.text.labels

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, part: slice) -> "MaskedSequences":
        return replace(self, text=self.text[part])

    def to(self, device: torch.device | str) -> "MaskedSequences":
        """Return the same sequences on another device."""
        return replace(self, text=self.text.to(device))

    def batches(self, size: int, generator: torch.Generator) -> Batches:
        """Yield one epoch in a new order with new masks, drawn on the CPU so that they are the same on every device."""
        return (self._masked(x, [generator]) for x, _ in self.text.batches(size, generator))

    def in_order(self, size: int) -> Batches:
        """Yield all sequences in order, each always with the same mask."""
        starts = iter(self.text.starts.tolist())
        for x, _ in self.text.in_order(size):
            yield self._masked(x, [generator_of(0, next(starts), "masked bytes") for _ in range(len(x))])

    def _masked(self, x: Tensor, generators: list[torch.Generator]) -> tuple[Tensor, Tensor]:
        """Mask the bytes of a batch; the generators share its sequences."""
        shape = (len(x) // len(generators), x.shape[1])
        order = torch.cat([torch.rand(shape, generator=each) for each in generators]).argsort(dim=1)
        other = torch.cat([torch.randint(BYTES, shape, generator=each) for each in generators])
        return masked(x, order.argsort(dim=1).to(x.device), other.to(x.device), self.share)


def masked(text: Tensor, rank: Tensor, other: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return inputs and targets; in each sequence the bytes of the lowest ranks are to be guessed, at least one.

    >>> text, rank = torch.tensor([[65, 66, 67, 68, 69]]), torch.tensor([[3, 0, 4, 2, 1]])
    >>> [part.tolist() for part in masked(text, rank, torch.full((1, 5), 90), share=0.4)]
    [[[65, 256, 67, 68, 256]], [[-100, 66, -100, -100, 69]]]
    """
    guessed = max(1, round(share * text.shape[1]))
    hidden = max(1, round(HIDDEN * guessed))
    replaced = min(guessed, hidden + round(REPLACED * guessed))
    inputs = text.where(rank >= hidden, MASK).where((rank < hidden) | (rank >= replaced), other)
    return inputs, text.where(rank < guessed, IGNORED)
