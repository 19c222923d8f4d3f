"""What a network is measured by on the test set, by the name that results carry. Lower is always better."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.models.registry import Registry
from rigl_compress.pipeline.train.data.samples import Samples


@dataclass(frozen=True)
class Metric:
    """A number for each answer, and its mean over all answers, times a scale. Results hold final_NAME and best_NAME."""

    name: str
    title: str
    unit: str
    digits: int
    of: Callable[[Tensor, Tensor], Tensor]  # answers [N, classes], targets [N] → [N]
    scale: float

    @property
    def heading(self) -> str:
        """The title with its unit, for the head of a column.

        >>> METRICS["error"].heading, METRICS["bpc"].heading
        ('error %', 'bits per character')
        """
        return f"{self.title} {self.unit}".strip()

    def show(self, value: float) -> str:
        """Write a value as people read it.

        >>> METRICS["error"].show(1.5), METRICS["bpc"].show(2.25)
        ('1.50 %', '2.250')
        """
        return f"{value:.{self.digits}f} {self.unit}".strip()

    def final_and_best(self, result: Mapping[str, Any]) -> tuple[float, float]:
        """Take both values from a result.

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


def metric_of(result: Mapping[str, Any]) -> Metric:
    """Give the metric of a result; those written before there were several are errors.

    >>> metric_of({"metric": "bpc"}).title, metric_of({}).title
    ('bits per character', 'error')
    """
    return METRICS[result.get("metric", "error")]


def loss_of(answers: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Give the mean cross-entropy of answers [..., classes], one for each target: images have one, texts one a step.

    >>> loss_of(torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64)).exp().item()
    4.0
    """
    return F.cross_entropy(answers.flatten(0, -2), targets.flatten(), label_smoothing=label_smoothing)


@torch.no_grad()
def evaluate(metric: Metric, model: nn.Module, samples: Samples, batch: int) -> float:
    """Measure a network in evaluation mode."""
    training = model.training
    model.eval()
    total, count = 0.0, 0
    for x, y in samples.in_order(batch):
        total += float(metric.of(model(x).flatten(0, -2), y.flatten()).sum())
        count += y.numel()
    model.train(training)
    return metric.scale * total / count


def error_rate(model: nn.Module, samples: Samples, batch: int = 1000) -> float:
    """Give the share of wrong answers in per cent, in evaluation mode."""
    return evaluate(METRICS["error"], model, samples, batch)
