"""Which layers of a network are to have all of their connections, and why."""

import warnings
from dataclasses import replace

from torch import nn

from rigl_compress.models.forward_order import find_layers
from rigl_compress.models.sparse_parameters import ENDS, dense_by_default, layer_shapes, sparse_parameters
from rigl_compress.sparsity.distributions import DISTRIBUTIONS
from rigl_compress.sparsity.sparsity_config import SparsityConfig


def dense_reasons(model: nn.Module, config: SparsityConfig) -> dict[str, str]:
    """Return why layers that could be sparse are dense by the settings, by name.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    >>> dense_reasons(model, SparsityConfig(distribution="uniform", layers={"2": 0.0}))
    {'0.weight': 'first layer, by the distribution uniform', '2.weight': 'sparsity 0 in sparsity.layers'}
    """
    with warnings.catch_warnings():  # the sparsifier has said it
        warnings.simplefilter("ignore")
        full = [name for name, density in config.densities(model).items() if density >= 1]
        if config.rule.dense:
            return dict.fromkeys(full, f"every connection, by the method {config.method_name}")
        single = {} if config.solves else config.unit_densities(model)  # a budget sets them
        known = _by_pattern(model, config, full) | dict.fromkeys(single, "sparsity 0 in sparsity.layers")
    return {name: known.get(name, f"full by the distribution {config.distribution}") for name in full}


def _by_pattern(model: nn.Module, config: SparsityConfig, full: list[str]) -> dict[str, str]:
    """Return the reasons of the layers that a recipe names as dense, or that are dense by default."""
    names = layer_shapes(model)
    matched = [(reason, find_layers(model, pattern, names)) for pattern, reason in _patterns(model, config)]
    return {name: reason for reason, found in matched for name in found if name in full}


def _patterns(model: nn.Module, config: SparsityConfig) -> list[tuple[str, str]]:
    """Return the patterns of dense layers with their reasons. The names of frozen layers are among the dense ones."""
    untrained = {name for name, each in sparse_parameters(model).items() if not each.requires_grad}
    frozen = [(each, "not trained (frozen)") for each in config.dense or () if each in untrained]
    named = None if config.dense is None else tuple(each for each in config.dense if each not in untrained)
    if named is not None and named != replace(config, dense=None).dense_patterns(model):
        return [(each, "named in sparsity.dense") for each in named] + frozen
    by_network = [(each, "kept dense by the network (dense_layers)") for each in dense_by_default(model)]
    of_distribution = DISTRIBUTIONS[config.distribution].dense
    return [(each, f"{_what(each)}, by the distribution {config.distribution}") for each in of_distribution] + [
        *by_network,
        *frozen,
    ]


def _what(pattern: str) -> str:
    return f"{pattern} layer" if pattern in ENDS else f"layer {pattern}"
