"""The target sparsity of each weight, its actual sparsity, and why dense weights are dense."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rigl_compress.models.sparse_parameters import sparse_layers
from rigl_compress.models.topology import Topology
from rigl_compress.models.unreached_weights import unreached_reasons
from rigl_compress.sparsity.dense_layers import dense_reasons
from rigl_compress.sparsity.sparsifier import Sparsifier


@dataclass(frozen=True)
class WeightAccount:
    """A weight, or a gate of a recurrent one. `target` is None where single weights have no target sparsity."""

    name: str
    size: int
    target: float | None
    sparsity: float
    dense_because: str = ""


def sparsity_account(
    model: nn.Module, sparse: Sparsifier, given: Topology | None, shares: Topology | None = None
) -> list[WeightAccount]:
    """Return the account of every weight with two axes or more.

    `given`: the topology of an earlier run that this one started from. `shares`: the one that the layers have their
    shares of connections from, where the distribution does not decide them.
    """
    targets, end, layers = _targets(model, sparse, given or shares), sparse.topology, sparse_layers(model)
    because = _reasons(model, sparse, given)
    if shares is not None:
        fixed = sparse.config.fixed_densities(model)
        because |= {name: "all of it is among the largest of the network" for name in layers if name not in fixed}
    found = []
    for name, part in layers.items():
        mask = part.of(end[part.parameter])
        sparsity = _sparsity(mask)
        reason = "" if sparsity else because.get(part.parameter, because.get(name, ""))
        found.append(WeightAccount(name, mask.numel(), targets.get(name), sparsity, reason))
    parts = {part.parameter for part in layers.values()}
    unreached = {name: size for name, size in sparse.left_dense.items() if name not in parts}
    return found + [WeightAccount(name, size, None, 0.0, because.get(name, "")) for name, size in unreached.items()]


def target_sparsity(sparse: Sparsifier, given: Topology | None) -> float | None:
    """Return the target sparsity of a whole network; None for methods that decide it themselves."""
    if sparse.method.gating is not None:
        return None if sparse.method.gating.chooses == "all" else sparse.config.sparsity
    if sparse.method.dense:
        return 0.0
    return sparse.config.sparsity if given is None else given.sparsity


def _sparsity(mask: torch.Tensor) -> float:
    return 1 - int(mask.sum()) / max(1, mask.numel())


def _targets(model: nn.Module, sparse: Sparsifier, given: Topology | None) -> dict[str, float]:
    """Return the target sparsity of each layer; structured methods have targets for units, not for weights."""
    if sparse.method.gating is not None:
        return {}
    if given is None:
        return {name: 1 - density for name, density in sparse.config.densities(model).items()}
    parts = sparse_layers(model)
    return {name: _sparsity(part.of(given[part.parameter])) for name, part in parts.items() if part.parameter in given}


def _reasons(model: nn.Module, sparse: Sparsifier, given: Topology | None) -> dict[str, str]:
    layers, unreached = sparse_layers(model), unreached_reasons(model)
    if sparse.method.gating is not None:
        recurrent = dict.fromkeys(sparse.left_dense, "no structured pruning of recurrent layers")
        return dict.fromkeys(layers, "no unit of it was removed") | recurrent | unreached
    if given is not None:
        return dict.fromkeys(layers, "dense in the topology that the run started from") | unreached
    return dense_reasons(model, sparse.config) | unreached


def topology_changes(before: Topology, after: Topology) -> dict[str, int]:
    """Count the connections that one topology has and another has not.

    >>> one, other = (Topology({"a": torch.tensor(mask)}) for mask in ([True, True, False], [False, True, True]))
    >>> topology_changes(one, other)
    {'dropped': 1, 'grown': 1}
    """
    return {
        "dropped": sum(int((old & ~after[name]).sum()) for name, old in before.items()),
        "grown": sum(int((after[name] & ~old).sum()) for name, old in before.items()),
    }


def all_sparsity(weights: Sequence[WeightAccount]) -> float:
    """Return the share of zeros in all weights together, those that sparse training does not reach included.

    >>> all_sparsity([WeightAccount("a", 30, 0.9, 0.9), WeightAccount("b", 10, None, 0.0)])
    0.675
    """
    return sum(each.size * each.sparsity for each in weights) / max(1, sum(each.size for each in weights))
