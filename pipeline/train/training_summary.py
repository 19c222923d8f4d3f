"""What a trained network costs: to run, to store, to train."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.layer_flops import FlopReport
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.training_loop import Job
from rigl_compress.pruning.dead_neurons import Pruned
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.schedules import pruned_density
from rigl_compress.sparsity.training_flops import TRAINING_CONVENTIONS, TrainingRun, training_flops

T = TypeVar("T")


def summarize(recipe: Recipe, model: SparseModel, job: Job, pruned: "Attempt[Pruned]") -> dict[str, Any]:
    """Return sparsity, inference FLOPs, training FLOPs under every convention, and the costs without dead neurons.

    What cannot be counted is None, and `not_counted` has the reason.
    """
    run = training_run(recipe, len(job.data.train), job.sparse.updates)
    report = Attempt(lambda: count_flops(job.model, model.spec.example().to(job.device), model.topology))
    parts = {
        "inference_flops": report.then(
            lambda found: {"convention": found.convention, "dense": found.dense, "sparse": found.sparse}
        ),
        "training_gflops": report.then(lambda found: training_gflops(recipe.sparsity.rule, found, run)),
        "pruned": pruned.then(pruned_costs),
    }
    return {
        "method": recipe.sparsity.method_name,
        "sparsity": model.topology.sparsity,
        "steps": job.sparse.steps,
        "samples": run.samples,
        "updates": job.sparse.updates,
        **{name: part.value for name, part in parts.items()},
        "not_counted": {name: part.failure for name, part in parts.items() if part.failure},
    }


class Attempt(Generic[T]):
    """The value of a function, or the reason why there is none: a custom network can raise anything."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.value: T | None = None
        self.failure = ""
        try:
            self.value = function()
        except Exception as error:
            first = first_line(error)
            self.failure = first if isinstance(error, InputError) else f"{type(error).__name__}: {first}"

    def then(self, function: Callable[[T], Any]) -> "Attempt[Any]":
        """Apply a function to the value, if there is one."""
        if self.value is None:
            return self
        value = self.value
        return Attempt(lambda: function(value))


def training_run(recipe: Recipe, samples: int, updates: int | None = None) -> TrainingRun:
    """Return what the training cost of a run depends on: `samples` per epoch, and the updates made (or planned)."""
    batches, accumulate = samples // recipe.train.batch * recipe.train.all_epochs, recipe.train.accumulate
    schedule = recipe.scaled_sparsity.schedule(batches // accumulate)
    made = schedule.updates if updates is None else updates
    return TrainingRun(
        samples=batches * recipe.train.batch,
        iterations=batches,
        interval=schedule.interval,
        updates=made * accumulate,  # in batches, as the iterations are: all of an update's batches need dense gradients
        density=lambda batch: pruned_density(schedule.passed(batch // accumulate), 1 - recipe.sparsity.sparsity),
    )


def training_gflops(method: Method, report: FlopReport, run: TrainingRun) -> dict[str, float]:
    """Return the cost of training under every convention."""
    cost = method.counted_cost
    return {name: training_flops(cost, report, run, name) / 1e9 for name in TRAINING_CONVENTIONS}


def pruned_costs(pruned: Pruned) -> dict[str, Any]:
    """Return what a network without dead neurons costs, in the terms of the table of Appendix B."""
    return {
        "architecture": pruned.report.architecture.partition(" → ")[2],
        "nonzeros": pruned.topology.active,
        "sparsity": pruned.topology.sparsity,
        "kflops": pruned.report.after.flops / 1000,
        "bitmask_bytes": pruned.report.after.bitmask_bytes,
    }


def sparse_report(model: SparseModel) -> FlopReport:
    """Count a trained network's forward pass on one sample like those it was trained on."""
    return count_flops(*model.spec.outline(), model.topology)
