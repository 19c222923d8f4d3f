"""The topology update of a sparse layer: growth by a gradient that is never in memory as a whole."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rigl_compress.models.training_kernels import growth_bound, growth_candidates, matched
from rigl_compress.sparsity.connection_scores import gradient
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.product_gradient import gradient_of_rows
from rigl_compress.sparsity.rewire import best, best_of_blocks
from rigl_compress.sparsity.score_blocks import ScoreStatus, excluding, score_blocks, scores_at
from rigl_compress.sparsity.sparse_layer import SparseLayerView


@dataclass(frozen=True)
class Moves:
    """The ascending positions of the connections after an update; of each, its index before, or -1 where it is new."""

    positions: Tensor
    origins: Tensor


def choose_moves(method: Method, view: SparseLayerView, keep: int, new: int) -> Moves | None:
    """Choose as `topology_update.choose` does. None: the scores carry no information, all connections stay."""
    layer, positions = view.layer, view.layer.positions
    drop = scores_at(method.drop, view, positions)
    index = best(drop, keep).sort().values
    usable = bool(drop.isfinite().all()) and bool(view.has_gradient())
    chosen = positions[index]
    if method.grow is not None:
        grown, informed = _grown(method, view, chosen, new)
        usable, chosen = usable and informed, torch.cat([chosen, grown]).sort().values
    if not usable:
        return None
    origins = matched(positions, chosen)
    if not method.keeps_regrown:
        kept = torch.zeros(layer.active + 1, dtype=torch.bool).index_fill_(0, index, True)
        origins = torch.where(kept[origins], origins, -1)  # the last one stands for -1
    return Moves(chosen, origins)


def _grown(method: Method, view: SparseLayerView, kept: Tensor, count: int) -> tuple[Tensor, bool]:
    """Return the positions that grow, and whether the scores are finite and not all zero."""
    if method.grow is gradient:
        return _grown_by_gradient(view, kept, count)
    assert method.grow is not None
    scores = ScoreStatus(score_blocks(method.grow, view))
    grown = best_of_blocks(excluding(scores, kept), count)
    return grown, bool(scores.finite & scores.nonzero)


def _grown_by_gradient(view: SparseLayerView, kept: Tensor, count: int) -> tuple[Tensor, bool]:
    """Return the positions of the largest gradients: of every block, only what exceeds the best so far is kept."""
    row = view.layer.size // max(1, view.layer.shape[0])
    magnitudes, places = torch.empty(0), torch.empty(0, dtype=torch.int64)
    lowest, finite, nonzero = -1.0, True, False
    for start, end in view.blocks():
        block = gradient_of_rows(view.layer.module, start // row, end // row)
        lowest = growth_bound(block, start, kept, count) if lowest < 0 else lowest
        found = growth_candidates(block, start, kept, lowest)
        finite, nonzero = finite and found.finite, nonzero or found.nonzero
        magnitudes, places = torch.cat([magnitudes, found.magnitudes]), torch.cat([places, found.positions])
        if len(places) > 2 * count:
            chosen = best(magnitudes, count).sort().values
            magnitudes, places = magnitudes[chosen], places[chosen]
            lowest = float(magnitudes.min()) if count else torch.inf
    chosen = best(magnitudes, min(count, len(places)))
    return places[chosen], finite and nonzero
