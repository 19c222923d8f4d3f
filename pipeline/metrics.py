"""Metrics on the test set, by their names in results. Lower is always better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.registry import Registry
from rigl_compress.data.samples import IGNORED, Samples


@dataclass(frozen=True)
class Metric:
    """A value per output, averaged over all outputs, times a scale. Results have final_NAME and best_NAME."""

    name: str
    title: str
    unit: str
    digits: int
    of: Callable[[Tensor, Tensor], Tensor]  # answers [N, classes], targets [N] → [N]
    scale: float

    @property
    def heading(self) -> str:
        """The title with its unit, as a column header.

        >>> METRICS["error"].heading, METRICS["bpc"].heading
        ('error %', 'bits per character')
        """
        return f"{self.title} {self.unit}".strip()

    def show(self, value: float) -> str:
        """Format a value with its unit.

        >>> METRICS["error"].show(1.5), METRICS["bpc"].show(2.25)
        ('1.50 %', '2.250')
        """
        return f"{value:.{self.digits}f} {self.unit}".strip()

    def final_and_best(self, result: Mapping[str, Any]) -> tuple[float, float]:
        """Return both values of a result.

        >>> METRICS["bpc"].final_and_best({"final_bpc": 2.1, "best_bpc": 2.0})
        (2.1, 2.0)
        """
        return result[f"final_{self.name}"], result[f"best_{self.name}"]


def _wrong(answers: Tensor, targets: Tensor) -> Tensor:
    return answers.argmax(dim=1) != targets


def _nats(answers: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(answers.float(), targets, reduction="none")


METRICS = Registry[Metric]("metric")
METRICS.register("error", Metric("error", "error", "%", 2, _wrong, 100.0))
# Cross-entropy is in nats; the paper converts it to bits (its figure of the character GRU).
METRICS.register("bpc", Metric("bpc", "bits per character", "", 3, _nats, 1 / log(2)))
METRICS.register("masked_bits", Metric("masked_bits", "bits per masked byte", "", 3, _nats, 1 / log(2)))


def metric_of(result: Mapping[str, Any]) -> Metric:
    """Return the metric of a result; by default the error.

    >>> metric_of({"metric": "bpc"}).title, metric_of({}).title
    ('bits per character', 'error')
    """
    return METRICS[result.get("metric", "error")]


def loss_of(answers: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy of outputs [..., classes], one per target: one of an image, one per step of a text.

    Outputs whose target is `IGNORED` do not count.

    >>> loss_of(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)).exp().item()
    4.0
    """
    flat = answers.flatten(0, -2)
    return F.cross_entropy(flat, targets.flatten(), label_smoothing=label_smoothing, ignore_index=IGNORED)


def evaluate(metric: Metric, model: nn.Module, samples: Samples, batch: int) -> float:
    """Measure a network in evaluation mode."""
    return mean_of(metric, batch_totals(metric, model, samples, batch))


@torch.no_grad()
def batch_totals(metric: Metric, model: nn.Module, samples: Samples, batch: int) -> list[tuple[float, int]]:
    """Measure a network in evaluation mode: the sum of the metric, and the number of outputs, of each batch."""
    training, totals = model.training, []
    model.eval()
    for x, y in samples.in_order(batch):
        answers, targets = _counted(model(x).flatten(0, -2), y.flatten())
        totals.append((float(metric.of(answers, targets).sum()), targets.numel()))
    model.train(training)
    return totals


def mean_of(metric: Metric, totals: Sequence[tuple[float, int]]) -> float:
    """Return the value of a metric from its sums over batches."""
    return metric.scale * sum(total for total, _ in totals) / sum(count for _, count in totals)


def _counted(answers: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Leave out the outputs whose targets are ignored.

    >>> _counted(torch.eye(3), torch.tensor([2, IGNORED, 0]))[1].tolist()
    [2, 0]
    """
    counted = targets != IGNORED
    return (answers, targets) if bool(counted.all()) else (answers[counted], targets[counted])
