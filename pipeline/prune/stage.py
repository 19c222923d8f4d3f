"""The stage `prune`: a sparse model → the same without its dead neurons."""

from contextlib import nullcontext
from typing import Any

from rigl_compress.models.artifacts import atomic_pair, write_json
from rigl_compress.models.networks import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.environment import command_line, environment
from rigl_compress.pipeline.prune.surgery import Pruned, prune_dead_neurons
from rigl_compress.pipeline.workspace import Run


def prune(model: SparseModel) -> Pruned:
    """Remove the dead neurons of a trained network, tried on one sample like those it was trained on."""
    return prune_dead_neurons(model.build(), model.topology, model.spec.example())


def living(model: SparseModel) -> ModelSpec:
    """Give the network that is left of a trained one, to be trained anew (RigL+)."""
    return model.spec.pruned(prune(model).plan)


def prune_run(run: Run, *, write: bool = True) -> dict[str, Any]:
    """Prune the network of a run. Files are written only when everything has succeeded; gives what was done."""
    with run.locked() if write else nullcontext():
        return _prune_run(run, write)


def _prune_run(run: Run, write: bool) -> dict[str, Any]:
    small, pruned = pruned_model(run.model())
    done = {
        "format": 1,
        "report": pruned.report.to_json(),
        "plan": pruned.plan.to_json(),
        "command": command_line(),
        "environment": environment(),
    }
    if write:
        with atomic_pair(run.pruned_file, run.prune_file) as (model_file, report_file):
            small.save(model_file)
            write_json(report_file, done)
    return done


def pruned_model(model: SparseModel) -> tuple[SparseModel, Pruned]:
    """Give the smaller sparse model as an artifact, and how it came about."""
    pruned = prune(model)
    spec = model.spec.pruned(pruned.plan)
    small = SparseModel.capture(spec, pruned.model, pruned.topology, model.step, dict(model.metrics))
    return small, pruned
