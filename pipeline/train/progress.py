"""What a training run says while it runs. The command line shows it; tests and libraries may listen or not."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """A moment of a training run. Numbers that are not known yet are None."""

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

    @property
    def ends_epoch(self) -> bool:
        """Whether an epoch ends here.

        >>> Progress(30, 60, 2, 4, 0.9).ends_epoch, Progress(31, 60, 3, 4, 0.9).ends_epoch
        (True, False)
        """
        return self.iteration * self.epochs == self.epoch * self.iterations


Listener = Callable[[Progress], None]
Say = Callable[[str], None]  # for what is told beside the progress: where data come from, which run has ended


def silent(progress: Progress) -> None:
    """Say nothing."""
    del progress


def say_nothing(text: str) -> None:
    """Say nothing."""
    del text
