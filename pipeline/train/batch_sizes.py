"""The batch size of a run: that of the recipe, or that of data which come in batches."""

from dataclasses import replace

from rigl_compress.data.dataset import DataSet
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.progress import Log


def with_batch_of(data: DataSet, recipe: Recipe, log: Log) -> Recipe:
    """Return the recipe with the batch size of the data, where they have one of their own."""
    if data.batch is None or data.batch == recipe.train.batch:
        return recipe
    log(f"train.batch = {recipe.train.batch} is not used: batches are those of the DataLoader, of {data.batch} samples")
    return replace(recipe, train=replace(recipe.train, batch=data.batch))
