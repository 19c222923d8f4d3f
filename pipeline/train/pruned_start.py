"""The start of a run at a network that was pruned in one shot, by what its layers see of the training samples."""

from dataclasses import replace
from itertools import islice

from torch import nn

from rigl_compress.core.random_generators import generator
from rigl_compress.data.dataset import DataSet
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.recipe import Recipe, StartConfig
from rigl_compress.sparsity.magnitude_topology import check_sparse_start
from rigl_compress.sparsity.obs_topology import obs_topology
from rigl_compress.sparsity.sparsity_config import SparsityConfig

OBS = "obs"


def prune_start(recipe: Recipe, config: SparsityConfig, model: nn.Module, data: DataSet) -> Topology:
    """Prune a network in place, as `start.topology` = "obs" asks for, and return its topology."""
    check_sparse_start(config.rule, OBS)
    start, batch = recipe.start or StartConfig(), recipe.train.batch
    order = generator(recipe.seed, 0, "samples to prune with")
    batches = islice(data.train.batches(batch, order), -(-start.samples // batch))
    return obs_topology(model, batches, config)


def without_pruning(recipe: Recipe) -> Recipe:
    """Return the recipe with the largest weights in the place of those of "obs": as many, and found at once."""
    if recipe.start is None or recipe.start.topology != OBS:
        return recipe
    return replace(recipe, start=replace(recipe.start, topology="magnitude"))
