"""Scores of a layer one block at a time, so that an update of a large layer needs no tensor of the layer's size.

On the CPU `torch.topk` takes 16 bytes for each of its inputs. Elsewhere a layer is one block: choosing among blocks
would wait for the device.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import torch
from torch import Tensor

from rigl_compress.core.tensor_blocks import block_bounds
from rigl_compress.sparsity.connection_scores import BY_CONNECTION, Score, random
from rigl_compress.sparsity.layer_state import LayerView

Block = tuple[int, Tensor]  # the flat position of the first score, and the scores


def score_blocks(score: Score, view: LayerView) -> Iterator[Block]:
    """Return the scores of all connections in the order of their flat positions."""
    if score not in BY_CONNECTION:
        yield 0, score(view).reshape(-1)
        return
    for start, end in view.blocks():
        yield start, score(view.block(start, end)).reshape(-1)


def magnitude_blocks(weight: Tensor) -> Iterator[Block]:
    """Return the magnitudes of a weight."""
    flat = weight.reshape(-1)
    return ((start, flat[start:end].abs()) for start, end in block_bounds(weight))


def scores_at(score: Score, view: LayerView, positions: Tensor) -> Tensor:
    """Return the scores of the active connections, at their ascending flat positions."""
    if score in BY_CONNECTION and score is not random:
        return score(view.at(positions))
    found = [block[inside - start] for start, block, inside in _with_positions(score_blocks(score, view), positions)]
    return found[0] if len(found) == 1 else torch.cat(found)


def excluding(blocks: Iterable[Block], positions: Tensor) -> Iterator[Block]:
    """Return the blocks with -∞ at ascending flat positions: they cannot be among the best."""
    for start, block, inside in _with_positions(blocks, positions):
        yield start, block.index_fill(0, inside - start, -torch.inf)


def _with_positions(blocks: Iterable[Block], positions: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Return each block with the positions inside of it."""
    each = iter(blocks)
    first, second = next(each), next(each, None)
    if second is None:  # all positions are inside: nothing waits for the device
        yield *first, positions
        return
    for start, block in chain((first, second), each):
        inside = torch.searchsorted(positions, torch.tensor([start, start + len(block)])).tolist()
        yield start, block, positions[inside[0] : inside[1]]


class ScoreStatus:
    """Passes blocks on, and records whether all scores were finite and any was not zero."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = blocks
        self._finite: list[Tensor] = []
        self._nonzero: list[Tensor] = []

    def __iter__(self) -> Iterator[Block]:
        for start, block in self._blocks:
            self._finite.append(block.isfinite().all())
            self._nonzero.append(block.any())
            yield start, block

    @property
    def was_read(self) -> bool:
        """Whether the blocks were passed on."""
        return bool(self._finite)

    @property
    def finite(self) -> Tensor:
        """Whether all scores that were passed on are finite."""
        return torch.stack(self._finite).all()

    @property
    def nonzero(self) -> Tensor:
        """Whether any score that was passed on is not zero."""
        return torch.stack(self._nonzero).any()
