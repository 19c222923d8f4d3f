"""The topology update of one layer: which connections are active after it, and which of them keep their weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rigl_compress.sparsity.layer_state import LayerView
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.rewire import best, mask_of, rewire


@dataclass(frozen=True)
class Rewiring:
    """The positions of the active connections, and the mask of those that keep weight and optimizer state."""

    positions: Tensor
    survivors: Tensor
    usable: Tensor  # one boolean, on the device: False where the scores carried no information, and all stay


def choose(method: Method, view: LayerView, positions: Tensor, keep: int, new: int) -> Rewiring:
    """Choose connections by a method's scores; of the active ones at `positions`, `keep` stay, and `new` are added.

    Where the count stays the same and the scores carry no information (a gradient that overflowed in half precision,
    or that is zero everywhere), all stay. That is decided on the device.
    """
    drop, grow = _scores(method, view)
    drop = drop.reshape(-1)[positions]
    chosen = rewire(positions, drop, grow, keep, new)
    kept = chosen if method.keeps_regrown else rewire(positions, drop, None, keep, 0)
    survivors = view.mask & mask_of(kept, view.mask.shape)
    if len(chosen) != len(positions):
        return Rewiring(chosen, survivors, torch.ones((), dtype=torch.bool, device=positions.device))
    usable = _finite(drop, grow) & _has_signal(view, grow)
    return Rewiring(torch.where(usable, chosen, positions), torch.where(usable, survivors, view.mask), usable)


def choose_anywhere(method: Method, view: LayerView, positions: Tensor, keep: int) -> Tensor:
    """Choose the `keep` connections with the highest drop score, active or not; as in `choose`, all may stay."""
    drop, grow = _scores(method, view)
    chosen = best(drop, keep)
    if len(chosen) != len(positions):
        return chosen
    return torch.where(_finite(drop, grow) & _has_signal(view, grow), chosen, positions)


def score_status(method: Method, view: LayerView, positions: Tensor) -> Tensor:
    """Return two booleans: the scores are finite; the layer has a gradient, and the grow scores are not all zero."""
    drop, grow = _scores(method, view)
    return torch.stack([_finite(drop.reshape(-1)[positions], grow), _has_signal(view, grow)])


def _scores(method: Method, view: LayerView) -> tuple[Tensor, Tensor | None]:
    return method.drop(view), None if method.grow is None else method.grow(view)


def _finite(drop: Tensor, grow: Tensor | None) -> Tensor:
    return drop.isfinite().all() if grow is None else drop.isfinite().all() & grow.isfinite().all()


def _has_signal(view: LayerView, grow: Tensor | None) -> Tensor:
    return view.gradient.any() if grow is None else view.gradient.any() & grow.any()
