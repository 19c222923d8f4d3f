"""Optimal brain surgeon for one layer: which weights to remove, and how the others make up for them.

A layer computes y = W x. On samples of x, removing weights changes y least if the inverse of the Gram matrix Σ x xᵀ
says which ones go and how the rest of their row moves (Hassibi and Stork 1993). All rows share the matrix, so that
the columns are taken in blocks, all rows at once.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

DAMPING = 0.01  # of the mean diagonal, added to it: directions that the samples hardly have would be amplified
COLUMNS = 64  # that are chosen at once
REFIT_WORK = 2e11  # multiplications: beyond, solving for every row takes longer than the layer is worth


@dataclass(frozen=True)
class Moments:
    """Sums over the samples of a layer: Σ x xᵀ of its inputs, Σ x yᵀ with the wanted outputs; both centred."""

    gram: Tensor  # [columns, columns]
    cross: Tensor  # [columns, rows]

    @property
    def damping(self) -> float:
        """What is added to the diagonal of the Gram matrix."""
        return max(DAMPING * float(self.gram.diagonal().mean()), sqrt(torch.finfo(self.gram.dtype).tiny))

    @property
    def damped(self) -> Tensor:
        """The Gram matrix with its damping: positive definite."""
        return self.gram + self.damping * torch.eye(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)


def surgeon(weight: Tensor, moments: Moments, count: int, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return a weight [rows, columns] with `count` elements left, fitted to the moments, and their mask.

    Only elements that are `allowed` are left, if these are given.

    >>> x = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.1], [0.0, 0.1, 1.0]], dtype=torch.float64)
    >>> weight = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    >>> found, mask = surgeon(weight, Moments(x.T @ x, x.T @ (x @ weight.T)), 1)
    >>> mask.sum().item(), round(found.max().item(), 1)  # one of two equal inputs takes over for both
    (1, 2.0)
    """
    best = _aimed(weight, moments)
    every = torch.ones_like(best, dtype=torch.bool)
    pruned, mask = _removed(best, moments, count, every if allowed is None else allowed)
    rows, longest = len(weight), int(mask.sum(1).max())
    return (_refitted(best, moments, mask) if rows * longest**3 <= REFIT_WORK else pruned), mask


def _aimed(weight: Tensor, moments: Moments) -> Tensor:
    """Return the dense weight that fits best, near the given one: inputs may differ from those it was trained on."""
    solution: Tensor = torch.linalg.solve(moments.damped, moments.cross + moments.damping * weight.T)
    return solution.T


def _removed(weight: Tensor, moments: Moments, count: int, allowed: Tensor) -> tuple[Tensor, Tensor]:
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments.damped))
    factor = torch.linalg.cholesky(inverse, upper=True)
    weight, mask = weight.clone(), torch.zeros_like(weight, dtype=torch.bool)
    for start in range(0, weight.shape[1], COLUMNS):
        columns = slice(start, min(start + COLUMNS, weight.shape[1]))
        share = _until(count, columns.stop, allowed) - _until(count, columns.start, allowed)
        score = weight[:, columns] / factor.diagonal()[columns] * allowed[:, columns]
        mask[:, columns] = _largest(score, share) & allowed[:, columns]
        moved = _remove_block(weight[:, columns], factor[columns, columns], mask[:, columns])
        weight[:, columns.stop :] -= moved @ factor[columns, columns.stop :]
    return weight, mask


def _until(count: int, column: int, allowed: Tensor) -> int:
    """Return how many elements stay before a column: every column has its share, and the sum is exact."""
    return round(count * int(allowed[:, :column].sum()) / max(1, int(allowed.sum())))


def _largest(score: Tensor, count: int) -> Tensor:
    mask = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    mask[score.abs().reshape(-1).topk(count).indices] = True
    return mask.view(score.shape)


def _remove_block(block: Tensor, factor: Tensor, mask: Tensor) -> Tensor:
    """Clear a block's inactive elements, one column after the other; return what later columns have to make up for."""
    moved = torch.zeros_like(block)
    for column in range(block.shape[1]):
        lost = block[:, column].masked_fill(mask[:, column], 0.0) / factor[column, column]
        block[:, column:] -= lost[:, None] * factor[column, column:]
        block[:, column].masked_fill_(~mask[:, column], 0.0)
        moved[:, column] = lost
    return moved


def _refitted(weight: Tensor, moments: Moments, mask: Tensor) -> Tensor:
    """Solve for the active elements of every row: the best that this mask can do."""
    damped, found = moments.damped, torch.zeros_like(weight)
    aims = moments.cross.T + moments.damping * weight
    for row, active in enumerate(mask):
        found[row, active] = torch.linalg.solve(damped[active][:, active], aims[row, active])
    return found
