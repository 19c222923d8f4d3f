"""One change of a layer's topology, as a pure function of tensors."""

from collections.abc import Iterable

import torch
from torch import Tensor

from rigl_compress.sparsity.score_blocks import Block, excluding


def rewire(positions: Tensor, drop: Tensor, grow: Iterable[Block] | None, keep: int, new: int) -> Tensor:
    """Keep the `keep` active connections with the highest drop score, then add the `new` best others by grow score.

    `positions` are the flat positions of the active connections [n], `drop` their scores [n], `grow` the scores of all
    positions in blocks. Returns the new positions. The candidates for growth are all connections that were not kept,
    those just dropped among them (Algorithm 1: the argmax runs over i ∉ θ \\ I_active). Inactive connections have no
    drop score, so they cannot win a tie. All counts are Python numbers: nothing waits for the device.

    >>> weight, gradient = torch.tensor([3.0, -2, 0.1, 0, 0]), torch.tensor([0.0, 0, 1, 5, 0])
    >>> positions = torch.tensor([0, 1, 2])
    >>> rewire(positions, weight[positions].abs(), [(0, gradient.abs())], keep=2, new=1).sort().values.tolist()
    [0, 1, 3]
    """
    kept = positions[best(drop, keep)]
    if grow is None or new == 0:
        return kept
    return torch.cat([kept, best_of_blocks(excluding(grow, kept.sort().values), new)])


def best(score: Tensor, count: int) -> Tensor:
    """Return the flat positions of the `count` highest scores.

    >>> best(torch.tensor([1.0, 5.0, 3.0]), 2).sort().values.tolist()
    [1, 2]
    """
    return torch.topk(score.reshape(-1), count, sorted=False).indices


def best_of_blocks(blocks: Iterable[Block], count: int) -> Tensor:
    """Return the flat positions of the `count` highest scores of several blocks.

    Of equal scores of several blocks, those at the lowest positions are chosen.

    >>> best_of_blocks([(0, torch.tensor([1.0, 5.0])), (2, torch.tensor([3.0, 5.0]))], 2).sort().values.tolist()
    [1, 3]
    """
    values, places = torch.empty(0), torch.empty(0, dtype=torch.long)
    lowest: Tensor | None = None  # of the best so far, where there are enough of them
    for start, block in blocks:
        found = best(block, min(count, len(block))) if lowest is None else (block > lowest).nonzero().squeeze(1)
        values = torch.cat([values.to(block), block[found]])
        places = torch.cat([places.to(block.device), found + start])
        if len(values) > 2 * count:  # as much work as was added since the last time
            chosen = best(values, count).sort().values
            values, places = values[chosen], places[chosen]
            lowest = values.min() if count else torch.tensor(torch.inf)
    return places if len(places) == count else places[best(values, count)]


def mask_of(positions: Tensor, shape: torch.Size) -> Tensor:
    """Return the mask of a shape that is True at the positions.

    >>> mask_of(torch.tensor([1, 2]), torch.Size([2, 2])).tolist()
    [[False, True], [True, False]]
    """
    mask = torch.zeros(shape, dtype=torch.bool, device=positions.device)
    mask.view(-1).index_fill_(0, positions, True)
    return mask
