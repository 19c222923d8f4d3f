"""The losses of an epoch: their mean, and the first that is not finite."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError

# A gradient scaler starts at 2^16 and halves at every overflow: after so many in a row its scale is 2^-34, and no
# smaller one can help.
PATIENCE = 50
_CURE = "lower learning_rate.peak, or set learning_rate.warmup or train.clip_gradient"


class DivergedError(InputError):
    """Training diverged: the loss, or a weight, is infinite or not a number."""


@dataclass
class Losses:
    """Collects losses on the device and reads them many at a time, since reading waits for the device.

    `scaled`: a gradient scaler skips the steps whose gradients overflow, so a single loss that is not finite is
    harmless.

    >>> losses = Losses()
    >>> losses.add(torch.tensor(2.0), step=0, learning_rate=0.1)
    >>> losses.read()
    >>> losses.mean
    2.0
    """

    scaled: bool = False
    mean_over: Callable[[Tensor], Tensor] = lambda values: values  # all processes, of which each has a part of a batch
    _unread: list[tuple[Tensor, int, float]] = field(default_factory=list)
    _total: float = 0.0
    _finite: int = 0
    _bad_in_a_row: int = 0

    def add(self, loss: Tensor, step: int, learning_rate: float) -> None:
        """Add the loss before an optimizer step, without waiting for its value."""
        self._unread.append((loss.detach(), step, learning_rate))

    def read(self) -> None:
        """Read the losses added since; raise at the first that is not finite, unless a gradient scaler explains it."""
        if not self._unread:
            return
        values = self.mean_over(torch.stack([loss for loss, _, _ in self._unread])).tolist()
        for value, (_, step, rate) in zip(values, self._unread, strict=True):
            self._count(value, step, rate)
        self._unread.clear()

    def _count(self, loss: float, step: int, rate: float) -> None:
        if isfinite(loss):
            self._total, self._finite, self._bad_in_a_row = self._total + loss, self._finite + 1, 0
            return
        self._bad_in_a_row += 1
        if not self.scaled:
            raise DivergedError(
                f"training diverged at step {step}: the loss is {loss} at learning rate {rate:g}; {_CURE}"
            )
        if self._bad_in_a_row == PATIENCE:
            raise DivergedError(
                f"training diverged at step {step}: the loss is {loss} for {PATIENCE} in a row at learning rate "
                f"{rate:g}, more than the gradient scaler explains; {_CURE}, or train.precision=bfloat16"
            )

    def end(self) -> None:
        """Read the rest of an epoch; raise if no loss is finite."""
        self.read()
        if not self._finite:
            raise DivergedError(
                f"training diverged: every loss of the epoch is infinite or not a number; {_CURE}, "
                "or train.precision=bfloat16"
            )

    @property
    def state(self) -> list[float]:
        """What was read so far, for a checkpoint within an epoch."""
        return [self._total, self._finite, self._bad_in_a_row]

    def load(self, state: Sequence[float]) -> None:
        """Go on from what was read before a checkpoint."""
        if state:
            self._total, self._finite, self._bad_in_a_row = float(state[0]), int(state[1]), int(state[2])

    @property
    def mean(self) -> float | None:
        """The mean of all finite losses read."""
        return self._total / self._finite if self._finite else None


def check_finite(model: nn.Module, step: int) -> None:
    """Raise if a weight or a running statistic is not finite: after the last step of an epoch no loss shows it."""
    floating = [(name, tensor) for name, tensor in model.state_dict().items() if tensor.is_floating_point()]
    if not floating:
        return
    finite = torch.stack([torch.isfinite(tensor).all() for _, tensor in floating]).tolist()
    bad = [name for (name, _), good in zip(floating, finite, strict=True) if not good]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise DivergedError(
            f"training diverged: {bad[0]}{more} has infinite or undefined values after step {step}; {_CURE}"
        )
