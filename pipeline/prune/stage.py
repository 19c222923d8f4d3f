"""The stage `prune`: a sparse model → the same without its dead neurons.

Training analyses the network for its summary and keeps the removals with the run. Pruning repeats them and compares the
outputs of both networks; it analyses the network itself only where no removals for its weights are kept.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from rigl_compress.core.artifacts import atomic_pair, read_json, write_json
from rigl_compress.core.errors import InputError
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.workspace import Run
from rigl_compress.pruning.dead_neurons import Pruned, apply_removals, prune_dead_neurons
from rigl_compress.pruning.removal import Removal

FORMAT = 1


def prune(model: SparseModel) -> Pruned:
    """Remove the dead neurons of a trained network, checked on one sample like those it was trained on."""
    return prune_dead_neurons(model.build(), model.topology, model.spec.example())


def pruned_spec(run: Run) -> ModelSpec:
    """Return the network of a run without its dead neurons, to be trained from the start (RigL+)."""
    model = run.model()
    return model.spec.pruned(_prune(run, model).plan)


def keep_removals(run: Run, removals: Sequence[Removal]) -> None:
    """Keep what was found about the saved network of a run, with the hash of its file."""
    content = [removal.to_json() for removal in removals]
    write_json(run.removals_file, {"format": FORMAT, "model": sha256_of(run.model_file), "removals": content})


def _kept_removals(run: Run) -> tuple[Removal, ...]:
    """Return the removals that are kept for the network of a run as it is now; none if it was changed since."""
    if not run.removals_file.is_file():
        return ()
    content = read_json(run.removals_file)
    if content.get("format") != FORMAT or content.get("model") != sha256_of(run.model_file):
        return ()
    return tuple(map(Removal.from_json, content["removals"]))


def _prune(run: Run, model: SparseModel) -> Pruned:
    # The file may be damaged in any way: whatever it leads to, the network itself is what counts.
    try:
        if removals := _kept_removals(run):
            return apply_removals(model.build(), model.topology, removals, model.spec.example())
    except (InputError, AttributeError, LookupError, TypeError, RuntimeError):
        pass
    return prune(model)


def prune_run(run: Run, *, write: bool = True) -> dict[str, Any]:
    """Prune the network of a run and return the report. Files are written only after everything has succeeded."""
    with run.locked() if write else nullcontext():
        return _prune_run(run, write)


def _prune_run(run: Run, write: bool) -> dict[str, Any]:
    model = run.model()
    pruned = _prune(run, model)
    done = {
        "format": 1,
        "report": pruned.report.to_json(),
        "plan": pruned.plan.to_json(),
        "command": command_line(),
        "environment": environment(),
    }
    if write:
        with atomic_pair(run.pruned_file, run.prune_file) as (model_file, report_file):
            pruned_model(model, pruned).save(model_file)
            write_json(report_file, done)
    return done


def pruned_model(model: SparseModel, pruned: Pruned) -> SparseModel:
    """Return the smaller sparse model as an artifact."""
    spec = model.spec.pruned(pruned.plan)
    return SparseModel.capture(spec, pruned.model, pruned.topology, model.step, dict(model.metrics))
