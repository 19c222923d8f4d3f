"""How many connections each layer keeps and how many it gains at an update."""

from collections.abc import Callable, Sequence
from math import ceil, floor

import torch

from rigl_compress.models.topology import connections
from rigl_compress.sparsity.layer_state import Layer, UpdatePoint
from rigl_compress.sparsity.schedules import pruned_density

Quota = Callable[[Sequence[Layer], UpdatePoint], list[tuple[int, int]]]


def swap(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Replace k = int(n_active · f_decay(t)) connections of each layer; every layer keeps its count (Algorithm 1)."""
    replaced = [int(layer.active * point.fraction) for layer in layers]
    return [(layer.active - k, k) for layer, k in zip(layers, replaced, strict=True)]


def swap_rounding_up(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Replace ⌈n_active · f_decay(t)⌉ connections, as some implementations do."""
    replaced = [ceil(layer.active * point.fraction) for layer in layers]
    return [(layer.active - k, k) for layer, k in zip(layers, replaced, strict=True)]


def shrink_to_target(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Go to the final count at once (SNIP, DNW)."""
    del point
    return [(layer.target, 0) for layer in layers]


def shrink_gradually(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Follow the cubic schedule of gradual pruning down to the final count (Zhu & Gupta)."""
    kept = [connections(pruned_density(point.passed, layer.target / layer.size), layer.size) for layer in layers]
    return [(min(layer.active, max(count, layer.target)), 0) for layer, count in zip(layers, kept, strict=True)]


def sign_changes(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Replace the connections whose weight has crossed zero (DeepR). Counting them waits for the device."""
    del point
    crossed = [int(layer.memory["crossed"].sum()) for layer in layers]
    return [(layer.active - count, count) for layer, count in zip(layers, crossed, strict=True)]


def weakest_anywhere(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Drop the smallest weights of the whole network; layers gain in proportion to what they keep (DSR).

    DSR adjusts a global threshold by feedback towards a given number of dropped weights; here the threshold that drops
    exactly that number is computed, so there is no state between updates.
    """
    total = sum(layer.active for layer in layers)
    dropped = int(total * point.fraction)
    strengths = torch.cat([layer.weight[layer.mask].abs() for layer in layers])
    owners = torch.cat([torch.full((layer.active,), index) for index, layer in enumerate(layers)])
    weakest = torch.topk(strengths, dropped, largest=False, sorted=False).indices.cpu()
    losses = torch.bincount(owners[weakest], minlength=len(layers)).tolist()
    kept = [layer.active - loss for layer, loss in zip(layers, losses, strict=True)]
    return _with_gains(layers, kept, dropped, [float(count) for count in kept])


def by_momentum(layers: Sequence[Layer], point: UpdatePoint) -> list[tuple[int, int]]:
    """Drop as `swap`; layers gain in proportion to the mean momentum of their connections (SNFS, redistributing)."""
    kept = [count for count, _ in swap(layers, point)]
    freed = sum(layer.active for layer in layers) - sum(kept)
    shares = [
        float(layer.memory["momentum"].float().abs()[layer.mask].mean()) if layer.active else 0.0 for layer in layers
    ]
    return _with_gains(layers, kept, freed, shares)


def _with_gains(
    layers: Sequence[Layer], kept: Sequence[int], freed: int, shares: Sequence[float]
) -> list[tuple[int, int]]:
    room = [layer.size - count for layer, count in zip(layers, kept, strict=True)]
    return list(zip(kept, share_whole(freed, shares, room), strict=True))


def share_whole(total: int, shares: Sequence[float], room: Sequence[int]) -> list[int]:
    """Share `total` in whole numbers, in proportion to `shares`, none beyond its room; the overflow goes to the others.

    >>> share_whole(10, [1, 3], [100, 100]), share_whole(10, [1, 3], [100, 2]), share_whole(3, [0, 0], [5, 5])
    ([3, 7], [8, 2], [2, 1])
    """
    given = [0] * len(shares)
    while (left := total - sum(given)) > 0 and (open_ := [i for i, gain in enumerate(given) if gain < room[i]]):
        for index, part in zip(open_, _largest_remainders(left, [shares[i] for i in open_]), strict=True):
            given[index] = min(room[index], given[index] + part)
    return given


def _largest_remainders(total: int, shares: Sequence[float]) -> list[int]:
    """Round proportional parts to whole numbers that add up: what flooring leaves goes to the largest remainders."""
    weight = sum(shares)
    exact = [total * (share / weight if weight else 1 / len(shares)) for share in shares]
    parts = [floor(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: parts[i] - exact[i])
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts
