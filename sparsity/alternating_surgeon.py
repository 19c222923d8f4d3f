"""Which weights of a layer to remove, by alternating between the best fit and the nearest sparse matrix.

The alternating direction method of multipliers: a dense matrix W that fits the moments is pulled towards its sparse
copy D, and D is cut out of W again, with a pull that grows until both agree (Boyd et al. 2011; for layers of networks:
Boža 2024, Meng et al. 2024). All rows share one eigendecomposition of the Gram matrix, so that a step costs two
products of matrices. Unlike `surgeon`, no column is decided before the others are looked at.
"""

import torch
from torch import Tensor

from rigl_compress.sparsity.second_order import Moments

STEPS = 30
FIRST_PULL, LAST_PULL = 0.1, 30.0  # of the unit diagonal
FIT_STEPS = 25


def alternating_surgeon(weight: Tensor, moments: Moments, count: int) -> tuple[Tensor, Tensor]:
    """Return a weight [rows, columns] with `count` elements left, fitted to the moments, and their mask.

    >>> x = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.1], [0.0, 0.1, 1.0]], dtype=torch.float64)
    >>> weight = torch.tensor([[1.0, 1.0, 0.0]], dtype=torch.float64)
    >>> found, mask = alternating_surgeon(weight, Moments(x.T @ x, x.T @ (x @ weight.T)), 1)
    >>> mask.sum().item(), round(found.max().item(), 1)  # one of two equal inputs takes over for both
    (1, 2.0)
    """
    return AlternatingSurgeon(weight, moments)(count)


class AlternatingSurgeon:
    """The same for several counts: the Gram matrix is factored once."""

    def __init__(
        self, weight: Tensor, moments: Moments, steps: int | None = None, allowed: Tensor | None = None
    ) -> None:
        """Take the elements that may be left; all, unless they are given."""
        self.steps, self.allowed = steps or STEPS, allowed
        damped = moments.damped
        self.scale = damped.diagonal().sqrt()  # of columns: with it, the diagonal is 1
        self.gram = damped / self.scale / self.scale[:, None]
        self.aim = (moments.cross + moments.damping * weight.T).T / self.scale
        self.values, self.vectors = torch.linalg.eigh(self.gram)
        self.start = (self.aim @ self.vectors / self.values) @ self.vectors.T  # the dense weight that fits best

    def __call__(self, count: int) -> tuple[Tensor, Tensor]:
        """Return a weight with `count` elements left, and their mask."""
        mask = self._mask(count)
        return fitted(self.gram, self.aim, self.start * mask, mask) / self.scale, mask

    def _mask(self, count: int) -> Tensor:
        pull, growth = FIRST_PULL, (LAST_PULL / FIRST_PULL) ** (1 / self.steps)
        sparse, dual = self._cut(self.start, count), torch.zeros_like(self.start)
        turned = self.aim @ self.vectors
        for _ in range(self.steps):
            dense = ((turned + ((pull * sparse - dual) @ self.vectors)) / (self.values + pull)) @ self.vectors.T
            sparse = self._cut(dense + dual / pull, count)
            dual += pull * (dense - sparse)
            pull *= growth
        return sparse != 0

    def _cut(self, weight: Tensor, count: int) -> Tensor:
        return _cut(weight if self.allowed is None else weight * self.allowed, count)


def refitted(weight: Tensor, moments: Moments, mask: Tensor) -> Tensor:
    """Return a weight whose active elements fit the moments best.

    >>> weight = torch.tensor([[1.0, 0.0]])
    >>> refitted(weight, Moments(torch.eye(2), torch.tensor([[2.0], [3.0]])), weight != 0).round().tolist()
    [[2.0, 0.0]]
    """
    damped = moments.damped
    scale = damped.diagonal().sqrt()
    aim = (moments.cross + moments.damping * weight.T).T / scale
    return fitted(damped / scale / scale[:, None], aim, weight * scale, mask) / scale


def _cut(weight: Tensor, count: int) -> Tensor:
    """Keep the largest elements of a matrix."""
    if count >= weight.numel():
        return weight
    kept = torch.zeros_like(weight).view(-1)
    largest = weight.abs().reshape(-1).topk(count).indices
    kept[largest] = weight.reshape(-1)[largest]
    return kept.view(weight.shape)


def fitted(gram: Tensor, aim: Tensor, start: Tensor, mask: Tensor) -> Tensor:
    """Solve for the active elements of all rows at once, by conjugate gradients from a start."""
    found = start * mask
    residual = (aim - found @ gram) * mask
    direction, square = residual.clone(), residual.square().sum(1, keepdim=True)
    for _ in range(FIT_STEPS):
        step = (direction @ gram) * mask
        length = square / (direction * step).sum(1, keepdim=True).clamp(min=torch.finfo(square.dtype).tiny)
        found += length * direction
        residual -= length * step
        new = residual.square().sum(1, keepdim=True)
        direction = residual + new / square.clamp(min=torch.finfo(square.dtype).tiny) * direction
        square = new
    return found
