"""An evaluation that several processes share: each measures some batches, the sums are added in their order."""

from itertools import chain

from torch import nn

from rigl_compress.data.samples import Samples
from rigl_compress.data.torch_datasets import LoadedBatches
from rigl_compress.pipeline.metrics import Metric, batch_totals, mean_of
from rigl_compress.pipeline.train.process_group import World


def evaluate_together(world: World, metric: Metric, model: nn.Module, samples: Samples, batch: int) -> float:
    """Measure a network in evaluation mode: the value of one process, bit by bit, where its networks are the same.

    The batches of a DataLoader have no parts: every process measures all of them.
    """
    if world.alone or isinstance(samples, LoadedBatches):
        return mean_of(metric, batch_totals(metric, model, samples, batch))
    rows = world.shard().rows(-(-len(samples) // batch))
    part = samples[rows.start * batch : rows.stop * batch]
    own = batch_totals(metric, model, part, batch) if len(part) else []
    return mean_of(metric, list(chain(*world.gather(own))))
