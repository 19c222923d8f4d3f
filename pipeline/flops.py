"""The table of `rigl-compress flops`: what a recipe's network costs to run, to train and to store."""

from dataclasses import replace
from typing import Any

from torch import nn

from rigl_compress.models.flops import count_flops
from rigl_compress.models.layer_costs import FlopReport
from rigl_compress.models.layers import sparse_layers, sparse_parameters
from rigl_compress.models.topology import connections
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.config import SparsityConfig
from rigl_compress.pipeline.train.data.load import outline
from rigl_compress.pipeline.train.narrow import width_for_density
from rigl_compress.pipeline.train.summary import training_gflops, training_run


def recipe_flops(recipe: Recipe, convention: str = "multiply-add") -> FlopReport:
    """Count the network of a recipe at its sparsity, in whole connections, on one sample; nothing is allocated."""
    shape, _ = outline(recipe.data.name, recipe.data.options)
    spec = recipe.model.taking(shape)
    if recipe.sparsity.rule.narrow:
        spec = spec.with_options(width=width_for_density(spec, 1 - recipe.sparsity.sparsity))
    model, example = spec.outline()
    return count_flops(model, example, kept_shares(model, recipe.sparsity), convention)


def kept_shares(model: nn.Module, sparsity: SparsityConfig) -> dict[str, float]:
    """Give the share of each weight that is alive, in whole connections.

    >>> kept_shares(nn.Linear(10, 10), SparsityConfig(sparsity=0.994, distribution="erk"))
    {'weight': 0.01}
    """
    densities, parameters = sparsity.densities(model), sparse_parameters(model)
    alive = dict.fromkeys(parameters, 0)
    for name, part in sparse_layers(model).items():
        alive[part.parameter] += connections(densities[name], part.of(parameters[part.parameter]).numel())
    return {name: alive[name] / parameter.numel() for name, parameter in parameters.items()}


def flops_json(recipe: Recipe, convention: str) -> dict[str, Any]:
    """Give inference FLOPs by layer and training FLOPs under every convention, as plain data."""
    report = recipe_flops(recipe, convention)
    plain = recipe_flops(recipe)  # training formulas are built on multiply-adds alone
    dense = recipe_flops(replace(recipe, sparsity=SparsityConfig("dense")))
    _, samples = outline(recipe.data.name, recipe.data.options)
    facts = {"recipe": recipe.name, **report.to_json(), "training_gflops": {}, "dense_training_gflops": {}}
    if not samples:  # of texts and folders: known only when they are read
        return facts
    run = training_run(recipe, samples - recipe.data.holdout)
    return facts | {
        "training_gflops": training_gflops(recipe.sparsity.method, plain, run),
        "dense_training_gflops": training_gflops("dense", dense, run),
    }
