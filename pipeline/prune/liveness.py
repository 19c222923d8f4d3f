"""What is dead. Pure: masks in, living units out."""

from collections.abc import Sequence

import torch
from torch import Tensor


def live_units(masks: Sequence[Tensor]) -> list[Tensor]:
    """Find the living units of a chain of fully connected layers, masks [out, in] in their order.

    A unit lives when something reaches it and something listens to it. Removing a unit can kill its neighbours, in both
    directions: repeated until nothing changes. Outputs always live; an input lives when something listens to it. One
    boolean vector per boundary: inputs, the hidden layers, outputs.

    >>> masks = [torch.tensor([[True, False], [True, True]]), torch.tensor([[True, False]])]
    >>> [units.tolist() for units in live_units(masks)]
    [[True, False], [True, False], [True]]
    """
    sizes = [masks[0].shape[1], *(mask.shape[0] for mask in masks)]
    live = [torch.ones(size, dtype=torch.bool) for size in sizes]
    while True:
        before = sum(int(units.sum()) for units in live)
        for index in range(1, len(masks)):
            reached = (masks[index - 1].cpu() & live[index - 1]).any(dim=1)
            live[index] = live[index] & reached
        for index in reversed(range(len(masks))):
            heard = (masks[index].cpu() & live[index + 1][:, None]).any(dim=0)
            live[index] = live[index] & heard
        if sum(int(units.sum()) for units in live) == before:
            return live


def living_connections(masks: Sequence[Tensor], live: Sequence[Tensor]) -> list[int]:
    """Count the connections of each layer between living units.

    >>> masks = [torch.tensor([[True, False], [True, True]]), torch.tensor([[True, False]])]
    >>> living_connections(masks, live_units(masks))
    [1, 1]
    """
    return [
        int((mask.cpu() & live[index + 1][:, None] & live[index][None, :]).sum()) for index, mask in enumerate(masks)
    ]
