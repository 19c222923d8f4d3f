"""The learning rate as a pure function of the optimizer step."""

from dataclasses import dataclass
from math import cos, pi
from typing import Literal

from rigl_compress.core.errors import InputError


@dataclass(frozen=True)
class LearningRate:
    """A peak, a warm-up, and a shape. Anchors are epochs, optimizer steps, or shares of the run.

    M× training scales them all; shares follow every change of the run's length.

    >>> rate = LearningRate(peak=0.2, drops=(75, 95), drop_factor=3).per_step(600, 200)
    >>> [round(rate(step), 4) for step in (0, 44999, 45000, 57000)]
    [0.2, 0.2, 0.0667, 0.0222]
    """

    peak: float = 0.1
    shape: Literal["drops", "cosine", "linear"] = "drops"
    drops: tuple[float, ...] = ()  # anchors at which the rate is divided
    drop_factor: float = 10.0
    hold: float = 0.0  # anchor at which cosine and linear start to fall
    warmup: float = 0.0  # length of the linear rise from 0
    floor: float = 0.0  # where cosine and linear end, as a share of the peak
    unit: Literal["epochs", "steps", "share"] = "epochs"  # of drops, hold and warmup

    def __post_init__(self) -> None:
        if not (0 < self.peak <= 1e38 and 0 < self.drop_factor <= 1e38):  # what float32 can hold
            raise InputError(
                f"learning_rate: peak is {self.peak} and drop_factor {self.drop_factor}, "
                "expected above 0 and at most 1e38"
            )
        if self.drops and self.shape != "drops":
            raise InputError(
                f"learning_rate.drops is given, but learning_rate.shape is {self.shape!r}, which has no drops: set "
                "learning_rate.shape to drops, or leave the drops out"
            )
        beyond = [anchor for anchor in (*self.drops, self.hold, self.warmup) if not 0 <= anchor <= 1]
        if self.unit == "share" and beyond:
            raise InputError(
                f'learning_rate: {beyond[0]:g} is not a share between 0 and 1, which unit = "share" expects: '
                "use a share, or set learning_rate.unit to epochs or steps"
            )

    def per_step(self, steps_per_epoch: int, epochs: float, multiplier: float = 1.0) -> "Rate":
        """Bind the schedule to a run: `epochs` is the whole run, the multiplier included."""
        total = round(steps_per_epoch * epochs)
        anchors = {"epochs": multiplier * steps_per_epoch, "steps": multiplier, "share": total}
        return Rate(self, anchors[self.unit], total)


@dataclass(frozen=True)
class Rate:
    """A learning-rate schedule of one run: step → rate."""

    schedule: LearningRate
    steps_per_anchor: float
    total_steps: int

    def __call__(self, step: int) -> float:
        """Return the rate of a step.

        >>> Rate(LearningRate(peak=1.0, shape="linear"), 10, 100)(50)
        0.5
        """
        anchor = step / self.steps_per_anchor
        if anchor < self.schedule.warmup:
            return self.schedule.peak * min(1.0, (step + 1) / (self.schedule.warmup * self.steps_per_anchor))
        return self.schedule.peak * self._share(step, anchor)

    def _share(self, step: int, anchor: float) -> float:
        if self.schedule.shape == "drops":
            return float(self.schedule.drop_factor ** -sum(anchor >= drop for drop in self.schedule.drops))
        start = max(self.schedule.warmup, self.schedule.hold) * self.steps_per_anchor
        left = 1 - min(1.0, max(0.0, step - start) / max(1.0, self.total_steps - start))
        falling = (1 - cos(pi * left)) / 2 if self.schedule.shape == "cosine" else left
        return self.schedule.floor + (1 - self.schedule.floor) * falling
