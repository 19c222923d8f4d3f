"""The checks of `--dry-run`: errors of a recipe that can be found without its data."""

from pathlib import Path

import torch

from rigl_compress.data.dataset import DataSet
from rigl_compress.data.dataset_registry import DATASETS, published
from rigl_compress.data.load_dataset import dataset_status, load_dataset, outline
from rigl_compress.data.samples import Split
from rigl_compress.models.model_registry import MODELS
from rigl_compress.pipeline.recipe import DataConfig, Recipe
from rigl_compress.pipeline.train.batch_sizes import with_batch_of
from rigl_compress.pipeline.train.device_choice import find_device
from rigl_compress.pipeline.train.progress import ignore_progress
from rigl_compress.pipeline.train.pruned_start import without_pruning
from rigl_compress.pipeline.train.stage import RunEnvironment, build_job, model_spec
from rigl_compress.pipeline.train.warning_lines import warnings_to_log
from rigl_compress.pipeline.workspace import Run


def check_recipe(recipe: Recipe, run_environment: RunEnvironment) -> None:
    """Build all that training starts with, and write nothing.

    Missing data are not downloaded: zeros of their shape and number take their place. What cannot be checked without
    the files is reported.
    """
    find_device(run_environment.device)
    earlier = recipe.start.run if recipe.start is not None else None
    if earlier is not None and not Run(Path(earlier)).model_file.exists():
        run_environment.log(f"not checked: the network, because start.run {earlier} is not a finished run yet")
        return
    data = _data(recipe.data, run_environment)
    if data is None:
        run_environment.log(f"not checked: the network, because {recipe.data.name} was not found, which sets its size")
        return
    data = data.hold_out(recipe.data.holdout) if recipe.data.holdout else data
    recipe = without_pruning(with_batch_of(data, recipe, run_environment.log))
    with warnings_to_log(run_environment.log):
        job = build_job(recipe, model_spec(recipe, data), data, torch.device("cpu"), ignore_progress)
    for note in job.notes:
        run_environment.log(note)


def check_names(recipe: Recipe) -> None:
    """Raise for unknown networks, data sets and methods before the first of many runs; references are not imported."""
    MODELS.check(recipe.model.name)
    DATASETS.check(recipe.data.name)
    recipe.sparsity.check_method()


def _data(config: DataConfig, run_environment: RunEnvironment) -> DataSet | None:
    if dataset_status(config.name, run_environment.data_dir).present:
        return load_dataset(config.name, run_environment.data_dir, fetch=False, options=config.options)
    return stand_in(config)


def stand_in(config: DataConfig) -> DataSet | None:
    """Return as many samples as a published data set has, of its shape; they share one zero in memory."""
    spec = published(config.name)
    shape, samples = outline(config.name, config.options)
    if not samples or not spec.classes:
        return None
    train, test = (_zeros(count, shape) for count in spec.counts)
    return DataSet(config.name, "zeros", spec.classes, shape, train, test, spec.metric)


def _zeros(count: int, shape: tuple[int, ...]) -> Split:
    return Split(torch.zeros(1).expand(count, *shape), torch.zeros(1, dtype=torch.int64).expand(count))
