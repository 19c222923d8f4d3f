"""The topology update of one layer: which connections are active after it, and which of them keep their weight."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rigl_compress.core.tensor_blocks import is_one_block
from rigl_compress.sparsity.layer_state import LayerView
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.rewire import best_of_blocks, mask_of, rewire
from rigl_compress.sparsity.score_blocks import ScoreStatus, score_blocks, scores_at


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
    drop, grow = scores_at(method.drop, view, positions), _grow_scores(method, view)
    chosen = rewire(positions, drop, grow, keep, new)
    kept = chosen if method.keeps_regrown else rewire(positions, drop, None, keep, 0)
    survivors = mask_of(kept, view.mask.shape).logical_and_(view.mask)
    if len(chosen) != len(positions):
        return Rewiring(chosen, survivors, torch.ones((), dtype=torch.bool, device=positions.device))
    usable = _usable(drop, grow) & view.has_gradient()
    return Rewiring(_either(usable, chosen, positions), _either(usable, survivors, view.mask), usable)


def choose_anywhere(method: Method, view: LayerView, positions: Tensor, keep: int) -> Tensor:
    """Choose the `keep` connections with the highest drop score, active or not; as in `choose`, all may stay."""
    drop, grow = ScoreStatus(score_blocks(method.drop, view)), _grow_scores(method, view)
    chosen = best_of_blocks(drop, keep)
    if len(chosen) != len(positions):
        return chosen
    usable = drop.finite & view.has_gradient()
    return _either(usable if grow is None else usable & _read(grow), chosen, positions)


def score_status(method: Method, view: LayerView, positions: Tensor) -> Tensor:
    """Return two booleans: the scores are finite; the layer has a gradient, and the grow scores are not all zero."""
    drop, grow = scores_at(method.drop, view, positions).isfinite().all(), _grow_scores(method, view)
    signal = view.has_gradient()
    if grow is not None:
        _read(grow)
        drop, signal = drop & grow.finite, signal & grow.nonzero
    return torch.stack([drop, signal])


def _either(condition: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Return one of two tensors by a boolean; a large one on the CPU, where nothing has to wait, without a copy."""
    if is_one_block(first):
        return torch.where(condition, first, second)
    return first if condition else second


def _grow_scores(method: Method, view: LayerView) -> ScoreStatus | None:
    return None if method.grow is None else ScoreStatus(score_blocks(method.grow, view))


def _usable(drop: Tensor, grow: ScoreStatus | None) -> Tensor:
    """Whether the drop scores are finite and the grow scores, where they were read, finite and not all zero."""
    finite = drop.isfinite().all()
    return finite if grow is None else finite & _read(grow)


def _read(grow: ScoreStatus) -> Tensor:
    """Whether the grow scores carry information; they are read now if nothing has read them before."""
    if not grow.was_read:
        for _ in grow:
            pass
    return grow.finite & grow.nonzero
