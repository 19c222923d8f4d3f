"""What a trained network costs: to run, to store, to train."""

from typing import Any

import torch

from rigl_compress.models.flops import count_flops
from rigl_compress.models.layer_costs import FlopReport
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.prune.stage import prune
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.costs import TRAINING_CONVENTIONS, TrainingRun, training_flops
from rigl_compress.pipeline.train.loop import Job
from rigl_compress.pipeline.train.schedules import pruned_density


def summarize(recipe: Recipe, model: SparseModel, job: Job) -> dict[str, Any]:
    """Give sparsity, what is alive, inference FLOPs, and training FLOPs under every convention."""
    report, run = sparse_report(model), training_run(recipe, len(job.data.train), job.sparse.updates)
    summary = {
        "method": recipe.sparsity.method,
        "sparsity": model.topology.sparsity,
        "steps": job.sparse.steps,
        "samples": run.samples,
        "updates": job.sparse.updates,
        "inference_flops": {"convention": report.convention, "dense": report.dense, "sparse": report.sparse},
        "training_gflops": training_gflops(recipe.sparsity.method, report, run),
    }
    return summary | {"alive": alive(model)}


def training_run(recipe: Recipe, samples: int, updates: int | None = None) -> TrainingRun:
    """Give the facts that a run's cost depends on: `samples` per epoch, and the updates made (or planned)."""
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


def training_gflops(method: str, report: FlopReport, run: TrainingRun) -> dict[str, float]:
    """Give the cost of training under every convention."""
    return {name: training_flops(method, report, run, name) / 1e9 for name in TRAINING_CONVENTIONS}


def alive(model: SparseModel) -> dict[str, Any]:
    """Give what is left without dead neurons, in the terms of the table of Appendix B."""
    pruned = prune(model)
    return {
        "architecture": pruned.report.architecture.partition(" → ")[2],
        "nonzeros": pruned.topology.active,
        "sparsity": pruned.topology.sparsity,
        "kflops": pruned.report.after.flops / 1000,
        "bitmask_bytes": pruned.report.after.bitmask_bytes,
    }


def sparse_report(model: SparseModel) -> FlopReport:
    """Count a trained network's forward pass on one sample like those it was trained on."""
    with torch.device("meta"):
        network = model.spec.build()
    return count_flops(network, model.spec.example().to("meta"), model.topology)
