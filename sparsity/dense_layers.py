"""Which layers of a network are to have all of their connections, and why."""

import warnings

from torch import nn

from rigl_compress.models.forward_order import find_layers
from rigl_compress.models.sparse_parameters import ENDS
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
    """Return the reasons of the layers that a recipe names as dense, or that its distribution leaves dense."""
    names = config.densities(model)
    patterns = DISTRIBUTIONS[config.distribution].dense if config.dense is None else config.dense
    matched = [(pattern, name) for pattern in patterns for name in find_layers(model, pattern, names)]
    return {name: _named(pattern, config) for pattern, name in matched if name in full}


def _named(pattern: str, config: SparsityConfig) -> str:
    if config.dense is not None:
        return "named in sparsity.dense"
    what = f"{pattern} layer" if pattern in ENDS else f"layer {pattern}"
    return f"{what}, by the distribution {config.distribution}"
