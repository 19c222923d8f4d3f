"""What a run says about its batch-norm statistics."""

from collections.abc import Iterator

from torch import nn

from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.process_group import World, current_world
from rigl_compress.pipeline.train.progress import Log
from rigl_compress.sparsity.batch_norm_statistics import batch_norm_layers


def report_batch_norm(recipe: Recipe, model: nn.Module, learned: bool, log: Log) -> None:
    """Log what is not obvious: settings without effect, statistics that fit no data or are not re-estimated."""
    found, world = bool(batch_norm_layers(model)), current_world()
    for note in (*batch_norm_notes(recipe, found, learned), *process_notes(recipe, found, world)):
        log(note)


def process_notes(recipe: Recipe, found: bool, world: World) -> Iterator[str]:
    """Yield the notes on batch norm in several processes.

    >>> list(process_notes(Recipe("net"), True, World(0, 4)))
    ['batch norm sees the 25 samples of each process by itself: train.sync_batch_norm = true takes the whole batch']
    """
    config = recipe.train
    if config.sync_batch_norm and not found:
        yield "train.sync_batch_norm has no effect: the network has no batch norm"
    if found and not (world.alone or config.sync_batch_norm or config.freeze_batch_norm):
        part = config.batch // world.count
        yield (
            f"batch norm sees the {part} samples of each process by itself: train.sync_batch_norm = true takes the "
            "whole batch"
        )


def batch_norm_notes(recipe: Recipe, found: bool, learned: bool) -> Iterator[str]:
    """Yield the notes on a network with (`found`) or without batch norm, that was trained before (`learned`) or not.

    >>> list(batch_norm_notes(Recipe("net"), found=True, learned=False))
    []
    """
    batches, frozen = recipe.train.recalibrate_batch_norm, recipe.train.freeze_batch_norm
    if batches and not found:
        yield f"train.recalibrate_batch_norm is {batches}, but the network has no batch norm: nothing to re-estimate"
    if frozen and not found:
        yield "train.freeze_batch_norm has no effect: the network has no batch norm"
    if found and not batches and not frozen and learned and not recipe.sparsity.rule.dense:
        yield (
            "batch-norm statistics are not re-estimated after the topology changes: if the error is high although "
            "the loss is low, set train.recalibrate_batch_norm, e.g. to 20, or train.freeze_batch_norm"
        )
