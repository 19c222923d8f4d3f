"""What a run says about its batch-norm statistics."""

from collections.abc import Iterator

from torch import nn

from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.progress import Log
from rigl_compress.sparsity.batch_norm_statistics import batch_norm_layers


def report_batch_norm(recipe: Recipe, model: nn.Module, log: Log) -> None:
    """Log what is not obvious: settings without effect, statistics that fit no data or are not re-estimated."""
    for note in batch_norm_notes(recipe, bool(batch_norm_layers(model))):
        log(note)


def batch_norm_notes(recipe: Recipe, found: bool) -> Iterator[str]:
    """Yield the notes on a network with (`found`) or without batch norm.

    >>> list(batch_norm_notes(Recipe("net"), found=True))
    []
    """
    batches, frozen = recipe.train.recalibrate_batch_norm, recipe.train.freeze_batch_norm
    if batches and not found:
        yield f"train.recalibrate_batch_norm is {batches}, but the network has no batch norm: nothing to re-estimate"
    if frozen and not found:
        yield "train.freeze_batch_norm has no effect: the network has no batch norm"
    if found and not batches and not frozen and _starts_trained(recipe) and not recipe.sparsity.rule.dense:
        yield (
            "batch-norm statistics are not re-estimated after the topology changes: if the error is high although "
            "the loss is low, set train.recalibrate_batch_norm, e.g. to 20, or train.freeze_batch_norm"
        )


def _starts_trained(recipe: Recipe) -> bool:
    return recipe.start is not None and recipe.start.weights != "fresh"
