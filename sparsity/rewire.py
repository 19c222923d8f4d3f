"""One change of a layer's topology, as a pure function of tensors."""

import torch
from torch import Tensor


def rewire(positions: Tensor, drop: Tensor, grow: Tensor | None, keep: int, new: int) -> Tensor:
    """Keep the `keep` active connections with the highest drop score, then add the `new` best others by grow score.

    `positions` are the flat positions of the active connections [n], `drop` their scores [n], `grow` the scores of all
    positions. Returns the new positions. The candidates for growth are all connections that were not kept, those just
    dropped among them (Algorithm 1: the argmax runs over i ∉ θ \\ I_active). Inactive connections have no drop score,
    so they cannot win a tie. All counts are Python numbers: nothing waits for the device.

    >>> weight, gradient = torch.tensor([3.0, -2, 0.1, 0, 0]), torch.tensor([0.0, 0, 1, 5, 0])
    >>> positions = torch.tensor([0, 1, 2])
    >>> rewire(positions, weight[positions].abs(), gradient.abs(), keep=2, new=1).sort().values.tolist()
    [0, 1, 3]
    """
    kept = positions[best(drop, keep)]
    if grow is None or new == 0:
        return kept
    others = grow.reshape(-1).index_fill(0, kept, -torch.inf)
    return torch.cat([kept, best(others, new)])


def best(score: Tensor, count: int) -> Tensor:
    """Return the flat positions of the `count` highest scores.

    >>> best(torch.tensor([1.0, 5.0, 3.0]), 2).sort().values.tolist()
    [1, 2]
    """
    return torch.topk(score.reshape(-1), count, sorted=False).indices


def mask_of(positions: Tensor, shape: torch.Size) -> Tensor:
    """Return the mask of a shape that is True at the positions.

    >>> mask_of(torch.tensor([1, 2]), torch.Size([2, 2])).tolist()
    [[False, True], [True, False]]
    """
    mask = torch.zeros(shape, dtype=torch.bool, device=positions.device)
    mask.view(-1).index_fill_(0, positions, True)
    return mask
