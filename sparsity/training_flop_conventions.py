"""How training FLOPs are counted: the facts of a run, and the three conventions that read them; no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry
from rigl_compress.models.layer_flops import FlopReport


@dataclass(frozen=True)
class Forward:
    """FLOPs of a forward pass of one sample; `…_first` is the part of the layers that read the data.

    >>> Forward(dense=532400, sparse=13244, dense_first=470400, sparse_first=4704).sparse
    13244
    """

    dense: float
    sparse: float
    dense_first: float = 0.0
    sparse_first: float = 0.0

    @classmethod
    def of(cls, report: FlopReport) -> "Forward":
        """Take the sums of a report that was made for one sample."""
        first = [layer for layer in report.layers if not layer.input_gradient]
        dense_first, sparse_first = sum(row.dense_flops for row in first), sum(row.sparse_flops for row in first)
        return cls(report.dense, report.sparse, dense_first, sparse_first)


@dataclass(frozen=True)
class TrainingRun:
    """Facts of a run. A fact that the method and the convention do not need can be left out.

    `iterations` counts every pass over a batch, updates of the topology included; `interval` is ΔT, `updates` how often
    the topology was updated, `density` returns the density at an iteration, and at `iterations` the final one.
    """

    samples: int
    iterations: int | None = None
    interval: int | None = None
    updates: int | None = None
    density: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("iterations", 1), ("interval", 1), ("updates", 0)):
            found = getattr(self, name)
            if found is not None and found < least:
                raise InputError(f"a run's {name} cannot be {found}: expected {least} or more")
        if self.iterations is not None and self.updates is not None and self.updates > self.iterations:
            raise InputError(
                f"{self.updates} updates do not fit into {self.iterations} iterations: set both from the same run"
            )


@dataclass(frozen=True)
class TrainingConvention:
    """How training FLOPs are counted.

    `error_signal`: (forward cost, its first-layer part) → cost of the gradient of the activations.
    `update_share`: the share of iterations that update the topology. `start_share`: the share of a single one at the
    start. `sampled`: the iterations at which a changing density is read.
    """

    error_signal: Callable[[float, float], float]
    update_share: Callable[[TrainingRun], float]
    start_share: Callable[[TrainingRun], float]
    sampled: Callable[[TrainingRun], Sequence[int]]


def required(value: int | None, name: str) -> int:
    """Return a fact of the run that a cost depends on; raise if it is missing.

    >>> required(TrainingRun(samples=1, interval=100).interval, "interval")
    100
    """
    if value is None:
        raise InputError(f"this cost depends on the run's {name}, which is missing: set TrainingRun.{name}")
    return value


def to_every_layer(cost: float, first: float) -> float:
    """Send the error signal to the input of every layer.

    >>> to_every_layer(100.0, 60.0)
    100.0
    """
    del first
    return cost


def not_to_the_data(cost: float, first: float) -> float:
    """Send no error signal to the data: nothing there learns.

    >>> not_to_the_data(100.0, 60.0)
    40.0
    """
    return cost - first


def spread_over_training(run: TrainingRun) -> float:
    """One update after every ΔT steps, to the end of training: T_end is ignored.

    >>> spread_over_training(TrainingRun(samples=1, interval=99))
    0.01
    """
    return 1 / (required(run.interval, "interval") + 1)


def as_it_happened(run: TrainingRun) -> float:
    """Return the number of updates made over the number of iterations made.

    >>> as_it_happened(TrainingRun(samples=1, iterations=120_000, updates=501))
    0.004175
    """
    return required(run.updates, "updates") / required(run.iterations, "iterations")


def negligible(run: TrainingRun) -> float:
    """Leave out what happens once: "we omit the initial dense gradient calculation since it is negligible".

    >>> negligible(TrainingRun(samples=1))
    0.0
    """
    del run
    return 0.0


def once(run: TrainingRun) -> float:
    """Count what happens once as one iteration.

    >>> once(TrainingRun(samples=1, iterations=1000))
    0.001
    """
    return 1 / required(run.iterations, "iterations")


def at_33_points(run: TrainingRun) -> Sequence[int]:
    """Sample the run as the paper's figure for pruning needs it: every 1,000 of 32,000 iterations, both ends included.

    >>> at_33_points(TrainingRun(samples=1, iterations=32_000))[:3]
    [0, 1000, 2000]
    """
    return [round(point * required(run.iterations, "iterations") / 32) for point in range(33)]


def at_every_iteration(run: TrainingRun) -> Sequence[int]:
    """Look at each iteration.

    >>> at_every_iteration(TrainingRun(samples=1, iterations=3))
    range(0, 3)
    """
    return range(required(run.iterations, "iterations"))


TRAINING_CONVENTIONS: Registry[TrainingConvention] = Registry("training FLOP convention")
TRAINING_CONVENTIONS.register(  # the MNIST table of Appendix B
    "paper-table", TrainingConvention(not_to_the_data, spread_over_training, negligible, at_33_points)
)
TRAINING_CONVENTIONS.register(  # the formulas as printed; the tables for ImageNet
    "appendix-h", TrainingConvention(to_every_layer, spread_over_training, negligible, at_33_points)
)
TRAINING_CONVENTIONS.register(  # what our own runs spend
    "exact-schedule", TrainingConvention(not_to_the_data, as_it_happened, once, at_every_iteration)
)
