"""FLOPs of a recipe: inference of its network by layer, and training under every convention."""

from dataclasses import replace
from typing import Any

from torch import nn

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.data.load_dataset import outline
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.layer_flops import FlopReport
from rigl_compress.models.sparse_parameters import sparse_layers, sparse_parameters
from rigl_compress.models.topology import connections
from rigl_compress.pipeline.budget_distribution import budget_lines
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.small_dense import width_for_density
from rigl_compress.pipeline.train.training_summary import training_gflops, training_run
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.sparsity_config import SparsityConfig


def recipe_flops(recipe: Recipe, convention: str = "multiply-add") -> FlopReport:
    """Count the FLOPs of one sample in the network of a recipe at its sparsity, without allocating weights."""
    shape, _ = outline(recipe.data.name, recipe.data.options)
    spec = recipe.model.taking(shape)
    if recipe.sparsity.rule.narrow:
        spec = spec.with_options(width=width_for_density(spec, 1 - recipe.sparsity.sparsity))
    model, example = spec.outline()
    densities = parameter_densities(model, recipe.sparsity.fitted(model, example))
    try:
        return count_flops(model, example, densities, convention)
    except InputError:
        raise
    except Exception as error:  # the code of a network can raise anything
        taken = f"does not take inputs of shape {tuple(shape)} ({recipe.data.name})"
        raise InputError(f"model {spec.name!r} {taken}: {first_line(error)}") from None


def recipe_budget(recipe: Recipe) -> tuple[str, ...]:
    """Return what a budget of the recipe comes to; nothing without one."""
    if not recipe.sparsity.solves:
        return ()
    model, example = recipe.model.taking(outline(recipe.data.name, recipe.data.options)[0]).outline()
    return budget_lines(recipe.sparsity.fitted(model, example), model, example)


def parameter_densities(model: nn.Module, sparsity: SparsityConfig) -> dict[str, float]:
    """Return the density of each sparse parameter, from whole numbers of connections.

    >>> parameter_densities(nn.Linear(10, 10), SparsityConfig(sparsity=0.994, distribution="erk"))
    {'weight': 0.01}
    """
    densities, parameters = sparsity.densities(model), sparse_parameters(model)
    active = dict.fromkeys(parameters, 0)
    for name, part in sparse_layers(model).items():
        active[part.parameter] += connections(densities[name], part.of(parameters[part.parameter]).numel())
    return {name: active[name] / parameter.numel() for name, parameter in parameters.items()}


def flops_json(recipe: Recipe, convention: str) -> dict[str, Any]:
    """Return inference FLOPs by layer and training FLOPs under every convention, as plain JSON values."""
    report = recipe_flops(recipe, convention)
    plain = recipe_flops(recipe)  # training formulas are built on multiply-adds alone
    dense = recipe_flops(replace(recipe, sparsity=SparsityConfig("dense")))
    _, samples = outline(recipe.data.name, recipe.data.options)
    facts = {"recipe": recipe.name, **report.to_json(), "training_gflops": {}, "dense_training_gflops": {}}
    facts |= dict(zip(["budget"], recipe_budget(recipe), strict=False))
    if not samples or recipe.sparsity.rule.cost is None:  # of texts and folders: known only when they are read
        return facts
    run = training_run(recipe, samples - recipe.data.holdout)
    return facts | {
        "training_gflops": training_gflops(recipe.sparsity.rule, plain, run),
        "dense_training_gflops": training_gflops(METHODS["dense"], dense, run),
    }
