"""Cutting parameters and buffers of layers: some slices along an axis stay."""

import torch
from torch import Tensor, nn

Kept = Tensor | None  # positions that stay, in order; None: all of them


def pick(tensor: Tensor, dim: int, kept: Kept) -> Tensor:
    """Return some slices of a tensor."""
    return tensor if kept is None else tensor.index_select(dim, kept.to(tensor.device))


def cut(module: nn.Module, name: str, dim: int, kept: Kept) -> None:
    """Keep some slices of a parameter or a buffer, if the layer has one."""
    tensor = getattr(module, name, None)
    if tensor is None or kept is None:
        return
    small = pick(tensor.detach(), dim, kept).clone()
    setattr(module, name, nn.Parameter(small, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else small)


def count(kept: Kept, before: int) -> int:
    """Return how many positions stay."""
    return before if kept is None else len(kept)


def positions_within(kept: Kept, sizes: list[int]) -> list[Kept]:
    """Return the positions that stay in each of several lists that are counted as one.

    >>> [part.tolist() for part in positions_within(torch.tensor([0, 3, 4]), [2, 3])]
    [[0], [1, 2]]
    """
    if kept is None:
        return [None] * len(sizes)
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [kept[(kept >= end - size) & (kept < end)] - (end - size) for end, size in zip(ends, sizes, strict=True)]


def positions_together(parts: list[Kept], sizes: list[int]) -> Kept:
    """Return the positions that stay in lists behind each other, counted as one: the inverse of `positions_within`.

    >>> positions_together([torch.tensor([0]), None], [2, 3]).tolist()
    [0, 2, 3, 4]
    """
    if all(part is None for part in parts):
        return None
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    whole = [_all(size) if part is None else part for part, size in zip(parts, sizes, strict=True)]
    return torch.cat([part + start for part, start in zip(whole, starts, strict=True)])


def _all(size: int) -> Tensor:
    return torch.arange(size, device="cpu")  # whatever the default device: networks are also built on `meta`
