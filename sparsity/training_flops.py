"""Training FLOPs of methods: pure functions of forward costs and facts of the schedule; no torch.

A training step is a forward pass, the error signal to the layers' inputs, and the gradient of the weights, each as
costly as the forward pass (paper, Appendix H). Every method is a mix of three kinds of steps: sparse, dense, and
`probing`, a sparse step with the gradient of all weights, inactive ones too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

from rigl_compress.core.errors import InputError
from rigl_compress.models.layer_flops import FlopReport
from rigl_compress.sparsity.training_flop_conventions import (
    TRAINING_CONVENTIONS,
    Forward,
    TrainingConvention,
    TrainingRun,
    required,
)

__all__ = [
    "TRAINING_CONVENTIONS",
    "Cost",
    "Forward",
    "Training",
    "TrainingRun",
    "dense",
    "flops_per_sample",
    "lottery",
    "lottery_rigl",
    "probing",
    "pruning",
    "rigl",
    "snip",
    "static",
    "training_flops",
]


@dataclass(frozen=True)
class Training:
    """What the formula of a method may use: steps in FLOPs per sample, and shares of the run."""

    forward: Forward
    run: TrainingRun
    convention: TrainingConvention

    @property
    def sparse_step(self) -> float:
        """3 f_S, by the paper."""
        f = self.forward
        return 2 * f.sparse + self.convention.error_signal(f.sparse, f.sparse_first)

    @property
    def dense_step(self) -> float:
        """3 f_D, by the paper."""
        f = self.forward
        return 2 * f.dense + self.convention.error_signal(f.dense, f.dense_first)

    @property
    def probing_step(self) -> float:
        """2 f_S + f_D, by the paper: the gradient of all weights in a sparse network."""
        f = self.forward
        return f.sparse + self.convention.error_signal(f.sparse, f.sparse_first) + f.dense

    @property
    def update_share(self) -> float:
        """The share of iterations that update the topology."""
        return self.convention.update_share(self.run)

    @property
    def start_share(self) -> float:
        """The share of a single iteration at the start."""
        return self.convention.start_share(self.run)

    @property
    def unpruned_share(self) -> float:
        """The mean over time of the share of connections to be removed that are still there."""
        if self.run.density is None:
            raise InputError("pruning's cost depends on the density over time: set TrainingRun.density")
        final = self.run.density(required(self.run.iterations, "iterations"))
        densities = [self.run.density(iteration) for iteration in self.convention.sampled(self.run)]
        return (fmean(densities) - final) / (1 - final) if final < 1 else 0.0


def mixed(usual: float, other: float, share: float) -> float:
    """Return the mean cost if `share` of the steps are of the other kind.

    >>> mixed(usual=3.0, other=13.0, share=0.1)
    4.0
    """
    return usual + share * (other - usual)


def dense(training: Training) -> float:
    """Every weight, all the time: 3 f_D.

    >>> dense(Training(Forward(dense=10, sparse=1), TrainingRun(1), TRAINING_CONVENTIONS["appendix-h"]))
    30
    """
    return training.dense_step


def static(training: Training) -> float:
    """A sparse network whose updates, if any, look at nothing but its own weights: 3 f_S.

    SET, DeepR and DSR grow at random, which is free. A small dense network is its own f_S.

    >>> static(Training(Forward(dense=10, sparse=1), TrainingRun(1), TRAINING_CONVENTIONS["appendix-h"]))
    3
    """
    return training.sparse_step


def snip(training: Training) -> float:
    """One dense step at the start, then static.

    >>> run = TrainingRun(1, iterations=10)
    >>> round(snip(Training(Forward(dense=10, sparse=1), run, TRAINING_CONVENTIONS["exact-schedule"])), 6)
    5.7
    """
    return mixed(training.sparse_step, training.dense_step, training.start_share)


def probing(training: Training) -> float:
    """The gradient of all weights at every step (SNFS, DNW): 2 f_S + f_D.

    >>> probing(Training(Forward(dense=10, sparse=1), TrainingRun(1), TRAINING_CONVENTIONS["appendix-h"]))
    12
    """
    return training.probing_step


def rigl(training: Training) -> float:
    """The gradient of all weights at updates only: (3 f_S ΔT + 2 f_S + f_D) / (ΔT + 1).

    >>> run = TrainingRun(1, interval=8)
    >>> rigl(Training(Forward(dense=10, sparse=1), run, TRAINING_CONVENTIONS["appendix-h"]))
    4.0
    """
    return mixed(training.sparse_step, training.probing_step, training.update_share)


def pruning(training: Training) -> float:
    """From dense to sparse, each layer in step with the others: E_t[3 f(s_t)].

    A layer's cost is linear in its density, so the mean density is enough.

    >>> run = TrainingRun(1, iterations=4, density=lambda step: 1.0 if step < 2 else 0.1)
    >>> round(pruning(Training(Forward(dense=10, sparse=1), run, TRAINING_CONVENTIONS["exact-schedule"])), 6)
    16.5
    """
    return mixed(training.sparse_step, training.dense_step, training.unpruned_share)


def lottery(training: Training) -> float:
    """Find the topology with RigL, then train it from the start without changing it.

    >>> run = TrainingRun(1, interval=8)
    >>> lottery(Training(Forward(dense=10, sparse=1), run, TRAINING_CONVENTIONS["appendix-h"]))
    7.0
    """
    return rigl(training) + static(training)


def lottery_rigl(training: Training) -> float:
    """Find the topology with RigL, then start again from it with RigL.

    >>> run = TrainingRun(1, interval=8)
    >>> lottery_rigl(Training(Forward(dense=10, sparse=1), run, TRAINING_CONVENTIONS["appendix-h"]))
    8.0
    """
    return 2 * rigl(training)


# A method's mean training FLOPs per sample.
Cost = Callable[[Training], float]


def flops_per_sample(cost: Cost, forward: Forward, run: TrainingRun, convention: str = "exact-schedule") -> float:
    """Return the mean training FLOPs per sample.

    >>> run = TrainingRun(samples=12_000_000, interval=100)
    >>> flops_per_sample(dense, Forward(532400, 13244, 470400, 4704), run, "paper-table")
    1126800
    """
    return cost(Training(forward, run, TRAINING_CONVENTIONS[convention]))


def training_flops(cost: Cost, report: FlopReport, run: TrainingRun, convention: str = "exact-schedule") -> float:
    """Return the training FLOPs of a whole run, from the report of the network for one sample.

    >>> from rigl_compress.models.layer_flops import LayerUse, flop_report
    >>> report = flop_report([LayerUse("fc", "linear", "fc.weight", weights=50, channels=5, positions=1)], {})
    >>> training_flops(dense, report, TrainingRun(samples=1000), "appendix-h")
    300000
    """
    return run.samples * flops_per_sample(cost, Forward.of(report), run, convention)
