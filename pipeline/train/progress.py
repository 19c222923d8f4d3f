"""Progress reports of a training run, for listeners such as the command line."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The state of a training run. Figures that are not known yet are None."""

    iteration: int
    iterations: int
    epoch: int
    epochs: int
    sparsity: float
    changed: int = 0
    loss: float | None = None
    value: float | None = None  # of the metric, at the last evaluation
    best: float | None = None
    metric: str = "error"  # a name of METRICS
    distillation: float | None = None  # the part of the loss that comes from a teacher

    @property
    def ends_epoch(self) -> bool:
        """Whether an epoch ends here.

        >>> Progress(30, 60, 2, 4, 0.9).ends_epoch, Progress(31, 60, 3, 4, 0.9).ends_epoch
        (True, False)
        """
        return self.iteration * self.epochs == self.epoch * self.iterations


Listener = Callable[[Progress], None]
Log = Callable[[str], None]  # for messages beside the progress: where data come from, which run has ended


def ignore_progress(progress: Progress) -> None:
    """Ignore a progress report."""
    del progress


def ignore_message(text: str) -> None:
    """Ignore a message."""
    del text
