"""Pruning of one layer, given what it reads: its new weight, what its bias takes up, and the error that is left."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log2
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rigl_compress.onnx_pruning.layer_inputs import LayerSums
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.sparsity.alternating_surgeon import AlternatingSurgeon, refitted
from rigl_compress.sparsity.second_order import Moments, surgeon

Array = NDArray[Any]
Prune = Callable[[int], tuple[Tensor, Tensor]]
# The share of the Gram matrix off its diagonal that is not believed: columns / (columns + SHRINK × samples).
SHRINK = 20
FEWEST = 0.05  # samples for every column: with fewer, the Gram matrix says nothing, and magnitude decides
NOISE = 1e-6  # of the mean square of an input: sums of 32 bits leave so much of the variance of a constant
SINGULAR = 1e-6  # of the diagonal
WIDEST = 3000  # columns: beyond, an eigendecomposition takes minutes


@dataclass(frozen=True)
class PrunedLayer:
    """A layer's new weight as blocks, what to add to its bias, and its error: squared, relative to its outputs."""

    blocks: Array
    shift: Array | None
    error: float


@dataclass(frozen=True)
class LayerMoments:
    """Means over samples of a layer, by group; centred if its bias can take up the mean."""

    layer: PrunableLayer
    weight: Tensor  # [groups, rows, columns]
    sums: LayerSums

    @classmethod
    def of(cls, layer: PrunableLayer, weight: Array, sums: LayerSums) -> "LayerMoments":
        """Combine a stored weight with its sums."""
        return cls(layer, torch.from_numpy(layer.blocks(weight).astype(np.float64)), sums)

    @cached_property
    def centred(self) -> tuple[Tensor, Tensor, Tensor]:
        """The Gram matrix, the moments with the wanted inputs, and those of the wanted inputs."""
        raw = [each / self.sums.samples for each in (self.sums.gram, self.sums.cross, self.sums.target)]
        if self.layer.bias is None:
            return raw[0], raw[1], raw[2]
        x, t = self.means
        pairs = ((x, x), (x, t), (t, t))
        gram, cross, target = (each - a[:, :, None] * b[:, None] for each, (a, b) in zip(raw, pairs, strict=True))
        u, v = _varying(gram, raw[0]), _varying(target, raw[2])
        gram *= u[:, :, None] * u[:, None]
        cross *= u[:, :, None] * v[:, None]
        target *= v[:, :, None] * v[:, None]
        return gram, cross, target

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """Mean inputs in the pruned and in the original model, [groups, columns]."""
        return self.sums.means / self.sums.samples, self.sums.target_means / self.sums.samples

    @property
    def shrinkage(self) -> float:
        """The share of correlations that is not believed: few samples have many by chance."""
        return self.sums.columns / (self.sums.columns + SHRINK * self.sums.samples)

    @property
    def enough(self) -> bool:
        """Whether there are samples enough for second-order information."""
        return self.sums.samples >= FEWEST * self.sums.columns

    @cached_property
    def refusal(self) -> str:
        """Why weights go by magnitude, if they do."""
        if not self.sums.finite:
            return "its inputs are not finite"
        if not self.enough:
            return f"{self.sums.samples:,} samples for {self.sums.columns:,} columns"
        return "" if self.varies else ("its inputs do not vary" if self.means[0].any() else "its inputs are all zero")

    @property
    def varies(self) -> bool:
        """Whether any input does; if none does, removed weights lose nothing that a bias cannot take up."""
        return bool(_own(self.centred[0]).any())

    @property
    def singular(self) -> str:
        """Why the Gram matrix has no inverse, if so: with a little less on its diagonal a pivot is negative."""
        if self.sums.samples < self.sums.columns:
            return f"{self.sums.samples:,} samples for {self.sums.columns:,} columns"
        gram, _, target = self.centred
        emptied = (_own(gram) == 0) & (_own(target) > 0)  # by pruning the layers before: no fault of the samples
        scale = _own(gram).clamp(min=torch.finfo(gram.dtype).tiny).rsqrt()
        unit = gram * scale[:, :, None] * scale[:, None] - SINGULAR * torch.eye(gram.shape[-1], dtype=gram.dtype)
        dependent = bool(torch.linalg.cholesky_ex(unit + torch.diag_embed(emptied.to(gram.dtype))).info.any())
        return "inputs that do not vary or depend on each other" if dependent else ""

    def group(self, number: int) -> Moments:
        """Return the moments of a group, shrunk towards the diagonal and towards the weight, and near 1."""
        gram, cross, _ = (each[number] for each in self.centred)
        own, weight = gram.diagonal().clone(), self.weight[number]
        shrunk = (1 - self.shrinkage) * gram + self.shrinkage * torch.diag(own)
        aimed = (1 - self.shrinkage) * cross @ weight.T + self.shrinkage * own[:, None] * weight.T
        near = _power_of_four(float(own.mean()))  # exact: 32 bits do not hold the squares of every input
        return Moments(shrunk / near, aimed / near)

    @cached_property
    def energy(self) -> float:
        """The mean square of the wanted outputs."""
        return max(float(((self.weight @ self.centred[2]) * self.weight).sum()), 0.0)

    def error(self, blocks: Tensor) -> float:
        """Return the squared error of outputs with other weights, relative to the wanted outputs.

        Where the wanted outputs are nothing, it is 0 for nothing, and 1 for anything else.
        """
        gram, cross, _ = self.centred
        own = float(((blocks @ gram) * blocks).sum())
        both = float(((blocks @ cross) * self.weight).sum())
        scale = self.energy or max(own, 0.0)
        return max(0.0, (own - 2 * both + self.energy) / scale) if scale else 0.0

    def pruned(self, blocks: Tensor) -> PrunedLayer:
        """Return the layer with other weights; its bias takes up the mean that outputs lost."""
        shift = None
        if self.layer.bias is not None:
            x, t = self.means
            missing = (self.weight @ t[:, :, None] - blocks @ x[:, :, None]).reshape(-1)
            shift = (self.layer.scale / self.layer.bias.factor * missing).numpy()
        return PrunedLayer(blocks.numpy(), shift, self.error(blocks))


def _own(gram: Tensor) -> Tensor:
    """Return the diagonals of matrices."""
    return gram.diagonal(dim1=-2, dim2=-1)


def _varying(centred: Tensor, raw: Tensor) -> Tensor:
    """Return 1 for columns that vary, 0 for those whose variance is rounding of their squares."""
    return (_own(centred) > NOISE * _own(raw)).to(raw.dtype)


def _power_of_four(value: float) -> float:
    """Return a power of four near a positive number; 1 for others. It and its root are exact factors.

    >>> _power_of_four(5.0), _power_of_four(0.3), _power_of_four(0.0)
    (4.0, 0.25, 1.0)
    """
    return float(4.0 ** round(log2(value) / 2)) if value > 0 else 1.0


class LayerSurgeon:
    """Prunes a layer to several densities: what they share is computed once."""

    def __init__(self, moments: LayerMoments, steps: int | None = None) -> None:
        self.moments, self._steps = moments, steps
        self._groups: list[Prune] | None = None

    def __call__(self, count: int) -> PrunedLayer:
        """Return the layer with `count` weights."""
        layer = self.moments.layer
        if count >= layer.most:
            return self.moments.pruned(self._refitted_within() if layer.zeros else self._refitted())
        groups = self._prepared()
        shares = (
            _shares(count, self.moments.weight)
            if layer.zeros
            else [_share(count, number, len(groups)) for number in range(len(groups))]
        )
        found = [prune(share)[0] for prune, share in zip(groups, shares, strict=True)]
        return self.moments.pruned(torch.stack([each.double() for each in found]))

    def _prepared(self) -> list[Prune]:
        if self._groups is None:
            self._groups = [self._group(number) for number in range(self.moments.layer.groups)]
        return self._groups

    def _group(self, number: int) -> Prune:
        weight, moments = self.moments.weight[number], self.moments.group(number)
        allowed = weight != 0 if self.moments.layer.zeros else None
        if weight.shape[1] > WIDEST:
            return lambda count: surgeon(weight, moments, count, allowed)
        single = Moments(moments.gram.float(), moments.cross.float())
        return AlternatingSurgeon(weight.float(), single, self._steps, allowed)

    def _refitted_within(self) -> Tensor:
        """Return the weight with the zeros that it has, the others fitted anew."""
        weights = self.moments.weight
        fits = [refitted(each, self.moments.group(number), each != 0) for number, each in enumerate(weights)]
        return torch.stack(fits)

    def _refitted(self) -> Tensor:
        """Return the dense weight that makes up best for what the layers before it lost."""
        found = [self.moments.group(number) for number in range(self.moments.layer.groups)]
        gram = torch.stack([each.damped for each in found])
        damping = torch.tensor([each.damping for each in found])[:, None, None]
        aim = torch.stack([each.cross for each in found]) + damping * self.moments.weight.mT
        solution: Tensor = torch.linalg.solve(gram, aim)
        return solution.mT


def _shares(count: int, weight: Tensor) -> list[int]:
    """Return how many weights each group keeps, in proportion to those that it has."""
    ends = [0, *(weight != 0).sum((1, 2)).cumsum(0).tolist()]
    return [round(count * end / ends[-1]) - round(count * begin / ends[-1]) for begin, end in pairwise(ends)]


def _share(count: int, number: int, groups: int) -> int:
    """Return how many weights a group keeps: the sum is exact."""
    return round(count * (number + 1) / groups) - round(count * number / groups)


def by_magnitude(layer: PrunableLayer, weight: Array, count: int) -> Array:
    """Return the blocks of a weight with its largest elements only."""
    flat = layer.blocks(weight).reshape(-1)
    kept = np.zeros_like(flat)
    largest = np.argpartition(np.abs(flat), flat.size - count)[flat.size - count :] if count else np.array([], int)
    kept[largest] = flat[largest]
    return kept.reshape(layer.groups, -1, layer.columns)
