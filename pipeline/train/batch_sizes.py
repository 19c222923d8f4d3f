"""The batch size of a run: that of the recipe, or that of data which come in batches."""

from dataclasses import replace

from rigl_compress.core.errors import InputError
from rigl_compress.data.dataset import DataSet
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.process_group import World
from rigl_compress.pipeline.train.progress import Log


def with_batch_of(data: DataSet, recipe: Recipe, log: Log) -> Recipe:
    """Return the recipe with the batch size of the data, where they have one of their own."""
    if data.batch is None or data.batch == recipe.train.batch:
        return recipe
    log(f"train.batch = {recipe.train.batch} is not used: batches are those of the DataLoader, of {data.batch} samples")
    return replace(recipe, train=replace(recipe.train, batch=data.batch))


def batch_notes(recipe: Recipe, world: World) -> list[str]:
    """Say how the batch of a recipe is split over processes; raise where it is too small for them."""
    batch, accumulate = recipe.train.batch, recipe.train.accumulate
    if world.alone:
        return []
    if batch < world.count:
        raise InputError(
            f"train.batch is {batch}, too few samples for {world.count} processes: start {batch} or fewer, or use a "
            "larger batch"
        )
    rows = [World(rank, world.count).shard().rows(batch) for rank in range(world.count)]
    parts = sorted({part.stop - part.start for part in rows})
    each = " or ".join(map(str, parts))
    steps = f", × {accumulate} batches per step = {batch * accumulate}" if accumulate > 1 else ""
    return [f"{world.count} processes: global batch {batch}, {each} in each process{steps}"]
