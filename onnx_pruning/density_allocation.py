"""How many weights each layer keeps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.layer_errors import LayerErrors
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.pruned_model import PrunedModel
from rigl_compress.sparsity.budget_solver import Candidate, Choice, choose

ALLOCATIONS = ("error", "uniform", "scaled")
STEP = 0.02  # between the densities that are considered
SPARSEST = 0.04
Counts = dict[str, int]


@dataclass(frozen=True)
class Allocation:
    """The weights that each layer keeps."""

    counts: Mapping[str, int]
    choice: Choice | None = None


def densities() -> list[float]:
    """Return the densities that a layer can have."""
    return [round(float(each), 4) for each in np.arange(SPARSEST, 1.0, STEP)] + [1.0]


def uniform_counts(layers: Sequence[PrunableLayer], density: float) -> Counts:
    """Keep the same share of every layer, but whole those that read one channel."""
    return {each.name: each.most if each.depthwise else each.count_at(density) for each in layers}


def already(layers: Sequence[PrunableLayer]) -> float:
    """Return the share of zeros that layers have before they are pruned; depthwise ones do not count."""
    free = [each for each in layers if not each.depthwise]
    return sum(each.zeros for each in free) / max(1, sum(each.size for each in free))


def scaled_counts(pruned: PrunedModel, layers: Sequence[PrunableLayer], density: float) -> Counts:
    """Keep the weights that are largest compared with the larger ones of their layer (LAMP, Lee et al. 2021)."""
    free = [each for each in layers if not each.depthwise]
    scores = [_scores(pruned.original(each.name).astype(np.float64).reshape(-1)) for each in free]
    if not scores:
        return uniform_counts(layers, density)
    wanted = round(density * sum(map(len, scores)))
    joined = np.concatenate(scores)
    border = np.partition(joined, len(joined) - wanted)[len(joined) - wanted] if 0 < wanted < len(joined) else 0.0
    found = {each.name: int((score >= border).sum()) for each, score in zip(free, scores, strict=True)}
    return {each.name: min(found.get(each.name, each.size), each.most) for each in layers}


def _scores(weight: np.ndarray) -> np.ndarray:
    """Return each weight squared over the sum of all that are no smaller.

    >>> _scores(np.array([1.0, -2.0])).tolist()
    [0.2, 1.0]
    """
    order = np.argsort(weight**2)
    squares = weight[order] ** 2
    rest = np.cumsum(squares[::-1])[::-1]
    found = np.empty_like(squares)
    found[order] = squares / np.maximum(rest, 1e-300)
    return found


def error_counts(layers: Sequence[PrunableLayer], errors: Mapping[str, LayerErrors], density: float) -> Allocation:
    """Spend the weights where they keep the error of the outputs least."""
    candidates = {
        each.name: [Candidate(one, min(one * each.size, each.most), errors[each.name].at(one)) for one in densities()]
        for each in layers
        if not each.depthwise
    }
    budget = density * sum(each.size for each in layers if not each.depthwise)
    choice = choose(candidates, budget)
    if not choice.met:
        raise InputError(f"sparsity {1 - density:.4g} is more than the largest, {1 - SPARSEST}: choose a smaller one")
    found = {each.name: each.count_at(choice.densities.get(each.name, 1.0)) for each in layers}
    return Allocation(_spent(found, layers, round(budget)), choice)


def _spent(counts: Counts, layers: Sequence[PrunableLayer], wanted: int) -> Counts:
    """Share out what steps of the densities left over, so that the sum is exact."""
    sizes = {each.name: each.most for each in layers if not each.depthwise}
    found = dict(counts)
    while (left := wanted - sum(found[name] for name in sizes)) != 0:
        room = {name: (size - found[name] if left > 0 else found[name]) for name, size in sizes.items()}
        open_ = {name: each for name, each in room.items() if each > 0 and found[name] < sizes[name]} or {
            name: each for name, each in room.items() if each > 0
        }
        if not open_:
            break
        total = sum(open_.values())
        for name, each in open_.items():
            found[name] += int(np.sign(left)) * min(each, abs(left) * each // total)
        if wanted - sum(found[name] for name in sizes) == left:
            name = max(open_, key=lambda key: open_[key])
            found[name] += int(np.sign(left)) * min(abs(left), open_[name])
    return found
