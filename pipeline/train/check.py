"""What `--dry-run` finds out: everything that can be wrong with a recipe before its data are there."""

from pathlib import Path

import torch

from rigl_compress.models.references import is_reference
from rigl_compress.pipeline.recipe import DataConfig, Recipe
from rigl_compress.pipeline.train.data.catalog import DATASETS
from rigl_compress.pipeline.train.data.dataset import DataSet
from rigl_compress.pipeline.train.data.load import dataset_status, load_dataset, outline
from rigl_compress.pipeline.train.data.samples import Split
from rigl_compress.pipeline.train.progress import silent
from rigl_compress.pipeline.train.stage import Circumstances, build_job, find_device, model_spec
from rigl_compress.pipeline.workspace import Run


def check_recipe(recipe: Recipe, here: Circumstances) -> None:
    """Build all that training starts with, and write nothing.

    Data that are not on this machine are not fetched: zeros of their shape and number stand in for them. What cannot be
    checked without files that are missing is said.
    """
    find_device(here.device)
    if recipe.start is not None and not Run(Path(recipe.start.run)).model_file.exists():
        here.say(f"not checked: the network, because start.run {recipe.start.run} is not a finished run yet")
        return
    data = _data(recipe.data, here)
    if data is None:
        here.say(f"not checked: the network, because {recipe.data.name} was not found and only its files tell its size")
        return
    data = data.hold_out(recipe.data.holdout) if recipe.data.holdout else data
    build_job(recipe, model_spec(recipe, data), data, torch.device("cpu"), silent)


def check_names(recipe: Recipe) -> None:
    """Refuse unknown networks, data sets and methods before the first of many runs; people's own are not loaded."""
    if not is_reference(recipe.model.name):
        recipe.model.network  # noqa: B018
    if not is_reference(recipe.data.name):
        DATASETS[recipe.data.name]
    if not is_reference(recipe.sparsity.method):
        recipe.sparsity.rule  # noqa: B018


def _data(config: DataConfig, here: Circumstances) -> DataSet | None:
    if is_reference(config.name) or dataset_status(config.name, here.data_dir).present:
        return load_dataset(config.name, here.data_dir, fetch=False, options=config.options)
    return stand_in(config)


def stand_in(config: DataConfig) -> DataSet | None:
    """As many samples as a published data set has, of its shape, all one and the same zero in memory."""
    spec = DATASETS[config.name]
    shape, samples = outline(config.name, config.options)
    if not samples or not spec.classes:
        return None
    train, test = (_zeros(count, shape) for count in spec.counts)
    return DataSet(config.name, "zeros", spec.classes, shape, train, test, spec.metric)


def _zeros(count: int, shape: tuple[int, ...]) -> Split:
    return Split(torch.zeros(1).expand(count, *shape), torch.zeros(1, dtype=torch.int64).expand(count))
