"""Topologies of the largest weights: where sparse training of a network that has already learnt begins."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.models.sparse_parameters import Part, sparse_layers, sparse_parameters
from rigl_compress.models.topology import Topology, connections
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.rewire import best, best_of_blocks, mask_of
from rigl_compress.sparsity.score_blocks import magnitude_blocks
from rigl_compress.sparsity.sparsity_config import SparsityConfig

Masks = Mapping[str, Tensor]  # by layer; a gate of a recurrent weight is a layer


def magnitude_topology(model: nn.Module, config: SparsityConfig | None = None, **settings: Any) -> Topology:
    """Return the largest weights of each layer, as many as the distribution gives it.

    Takes a config, or its fields as keywords, as `Sparsifier` does.

    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.weight.data.copy_(torch.tensor([[1.0, -4.0], [3.0, 0.5]]))
    >>> magnitude_topology(model, sparsity=0.5)["weight"].tolist()
    [[False, True], [True, False]]
    """
    config = config or SparsityConfig(**settings)
    weights = _weights(model)
    return _topology(model, _largest_in_each(weights, _counts(model, config, weights)))


def global_magnitude_topology(model: nn.Module, config: SparsityConfig | None = None, **settings: Any) -> Topology:
    """Return the largest weights of all layers together, as many as the distribution gives them in total.

    Layers of `dense` and `layers` are not compared with the others: each keeps its own number.

    >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    >>> for layer, largest in zip(model, (1.0, 3.0)):
    ...     _ = layer.weight.data.copy_(largest * torch.tensor([[0.1, 0.2], [0.3, 1.0]]))
    >>> [layer.active for layer in global_magnitude_topology(model, sparsity=0.5, distribution="er").layers]
    [1, 3]
    """
    config = config or SparsityConfig(**settings)
    weights, fixed = _weights(model), config.fixed_densities(model)
    counts = _counts(model, config, weights)
    shared = {name: weight for name, weight in weights.items() if name not in fixed}
    own = {name: weight for name, weight in weights.items() if name in fixed}
    return _topology(model, {**_largest_in_each(own, counts), **_largest_of_all(shared, counts)})


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of each layer."""
    parameters = sparse_parameters(model)
    return {name: part.of(parameters[part.parameter].detach()) for name, part in sparse_layers(model).items()}


def _counts(model: nn.Module, config: SparsityConfig, weights: Masks) -> dict[str, int]:
    return {name: connections(density, weights[name].numel()) for name, density in config.densities(model).items()}


def _largest_in_each(weights: Masks, counts: Mapping[str, int]) -> dict[str, Tensor]:
    return {
        name: mask_of(best_of_blocks(magnitude_blocks(weight), counts[name]), weight.shape)
        for name, weight in weights.items()
    }


def _largest_of_all(weights: Masks, counts: Mapping[str, int]) -> dict[str, Tensor]:
    if not weights:
        return {}
    every = torch.cat([weight.abs().reshape(-1).float() for weight in weights.values()])
    mask = mask_of(best(every, sum(counts[name] for name in weights)), every.shape)
    parts = torch.split(mask, [weight.numel() for weight in weights.values()])
    found = {name: part.view(weight.shape) for (name, weight), part in zip(weights.items(), parts, strict=True)}
    _check_none_empty(found, counts)
    return found


def _check_none_empty(masks: Masks, counts: Mapping[str, int]) -> None:
    """Raise where all weights of a layer are smaller than those of the others, such as those of a new head."""
    empty = [name for name, mask in masks.items() if counts[name] and not mask.is_meta and not mask.any()]
    if empty:
        raise InputError(
            f"no weight of {', '.join(empty)} is among the largest of the network, the output would be constant: "
            'keep such layers dense (sparsity.dense), or use "magnitude", the largest of each layer'
        )


def _topology(model: nn.Module, masks: Masks) -> Topology:
    """Put the masks of layers together to those of parameters."""
    found = {name: torch.ones_like(each, dtype=torch.bool) for name, each in sparse_parameters(model).items()}
    layers: dict[str, Part] = sparse_layers(model)
    for name, mask in masks.items():
        layers[name].of(found[layers[name].parameter]).copy_(mask)
    return Topology(found)


TOPOLOGIES: dict[str, Callable[[nn.Module, SparsityConfig], Topology]] = {
    "magnitude": magnitude_topology,
    "magnitude-global": global_magnitude_topology,
}


def chosen_topology(name: str, model: nn.Module, config: SparsityConfig) -> Topology:
    """Return the topology of that name; raise for methods that begin with every connection."""
    if name == "obs":
        raise InputError(
            'the topology "obs" depends on training samples: pass topology=obs_topology(model, batches, …), or set '
            "start.topology in a recipe"
        )
    if name not in TOPOLOGIES:
        raise InputError(f"unknown topology {name!r}: {did_you_mean(name, TOPOLOGIES)}; or pass a Topology")
    check_sparse_start(config.rule, name)
    return TOPOLOGIES[name](model, config)


def check_sparse_start(method: Method, name: str) -> None:
    """Raise for methods that begin with every connection."""
    if method.start is None:
        raise InputError(
            f"method {method.name!r} begins with every connection, so that the topology {name!r} means nothing to it: "
            'leave the topology out, or use a method that begins sparse, e.g. "static" or "rigl"'
        )
