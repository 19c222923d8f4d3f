"""The stage `train`: recipe → run folder with a sparse model."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.layers import shapes_of, sparse_parameters
from rigl_compress.models.networks import ModelSpec
from rigl_compress.models.references import is_reference
from rigl_compress.models.sparse_model import SparseModel, load_weights
from rigl_compress.models.topology import Topology
from rigl_compress.models.trust import code_is_trusted, may_run, named, only_named, remember, trusting_code
from rigl_compress.pipeline.environment import command_line, environment
from rigl_compress.pipeline.prune.stage import living
from rigl_compress.pipeline.recipe import Recipe, StartConfig
from rigl_compress.pipeline.train.checkpoint import load_checkpoint, save_checkpoint
from rigl_compress.pipeline.train.data.dataset import DataSet
from rigl_compress.pipeline.train.data.load import load_dataset
from rigl_compress.pipeline.train.initialize import initialize, scale_for_fan_in
from rigl_compress.pipeline.train.loop import Job, train_epochs
from rigl_compress.pipeline.train.losses import DivergedError
from rigl_compress.pipeline.train.narrow import in_training, width_for_density
from rigl_compress.pipeline.train.optimizers import build_optimizer
from rigl_compress.pipeline.train.progress import Listener, Say, say_nothing, silent
from rigl_compress.pipeline.train.sparsifier import Sparsifier
from rigl_compress.pipeline.train.spoken import spoken
from rigl_compress.pipeline.train.summary import summarize
from rigl_compress.pipeline.workspace import Run


@dataclass(frozen=True)
class Circumstances:
    """What a run's outcome does not depend on: where it computes, where its data is, who listens."""

    device: str = "auto"
    data_dir: Path | None = None
    listener: Listener = silent
    say: Say = say_nothing
    trust_code: bool = field(default_factory=code_is_trusted)  # of the earlier run that a recipe starts from
    named: set[str] | None = field(default_factory=named)  # code that may be run, in other processes too


def train(
    recipe: Recipe,
    path: Path,
    circumstances: Circumstances | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> SparseModel:
    """Train a recipe in a run folder. `resume` goes on from the folder's last checkpoint, bit by bit on the CPU."""
    here = circumstances or Circumstances()
    with trusting_code(here.trust_code), only_named(here.named), Run(path).locked():
        return _train(recipe, path, here, resume=resume, overwrite=overwrite)


def _train(recipe: Recipe, path: Path, here: Circumstances, *, resume: bool, overwrite: bool) -> SparseModel:
    device = find_device(here.device)
    if recipe.start is not None and Path(recipe.start.run).resolve() == path.resolve():
        raise InputError(f"start.run is {recipe.start.run!r}, the folder of this very run: choose another with --run")
    data = load_dataset(recipe.data.name, here.data_dir, say=here.say, options=recipe.data.options)
    data = data.hold_out(recipe.data.holdout) if recipe.data.holdout else data
    spec = model_spec(recipe, data)
    # Everything that can be wrong with the recipe is found before anything is written.
    with spoken(here.say):
        job = build_job(recipe, spec, data.to(device), device, here.listener)
    run = Run.open(path) if resume else Run.create(path, recipe, overwrite=overwrite)
    _remember_code(run, recipe, spec, here.say)
    began = perf_counter()
    if resume and run.checkpoint_file.exists():
        progress = load_checkpoint(run.checkpoint_file, job.model, job.optimizer, job.sparse)
        _take_up(job, progress, run.checkpoint_file)
        began -= progress["seconds"]
    else:
        run.topology_file("begin").unlink(missing_ok=True)
        _save_begin(run, job, spec, recipe)
    run.keep_metrics(job.epochs_done)

    saved = job.epochs_done  # the epoch of the latest checkpoint

    def end_of_epoch(epochs_done: int, metrics: dict[str, Any]) -> None:
        nonlocal saved
        seconds = perf_counter() - began
        run.add_metrics({**metrics, "sparsity": job.sparse.sparsity, "seconds": round(seconds, 2)})
        if epochs_done % recipe.train.checkpoint_every == 0:
            progress = {"epochs_done": epochs_done, "seen": job.seen, "seconds": seconds}
            progress["scaler"] = job.scaler.state_dict()
            save_checkpoint(run.checkpoint_file, job.model, job.optimizer, job.sparse, progress)
            saved = epochs_done

    try:
        with spoken(here.say):
            train_epochs(job, end_of_epoch)
    except DivergedError as error:
        kept = f"keeps the checkpoint of epoch {saved}" if saved else "has no checkpoint yet"
        raise DivergedError(f"{error}; {run.path} {kept}") from None
    facts = {"data": data.source, "seconds": round(perf_counter() - began, 1)}
    model = _finish(run, job, spec, recipe, facts)
    for part, reason in model.metrics["not_counted"].items():
        here.say(f"warning: {part} was not counted: {reason}")
    return model


def _take_up(job: Job, progress: Mapping[str, Any], file: Path) -> None:
    """Go on from where a checkpoint was; one that no such run can have written is refused."""
    done, every, scaler = progress["epochs_done"], job.config.all_epochs, dict(progress["scaler"])
    if not 0 <= done <= every or (done == every and job.data.metric not in progress["seen"]):
        raise InputError(f"{file} is of epoch {done} of {every}, and not whole: train anew with overwrite=True")
    job.epochs_done, job.seen = done, dict(progress["seen"])
    own, saved = ({key: type(value) for key, value in each.items()} for each in (job.scaler.state_dict(), scaler))
    if own != saved:
        raise InputError(
            f"{file} was written with another train.precision, or is damaged: train anew with overwrite=True"
        )
    job.scaler.load_state_dict(scaler)


def _remember_code(run: Run, recipe: Recipe, spec: ModelSpec, say: Say) -> None:
    """Keep in mind, outside of the run folder, that the code of this run has the user's word."""
    every = [(each.name, each.options) for each in (recipe.model, spec, recipe.data)]
    # A recipe that starts from an earlier network names one that is never built: that is nobody's word.
    calls = [(name, options) for name, options in every if is_reference(name) and may_run(name)]
    try:
        if calls:
            remember(run.path, calls)
    except OSError as error:
        say(f"cannot remember that {calls[0][0]} is yours ({error}): later commands on {run.path} need --trust-code")


def find_device(name: str) -> torch.device:
    """Resolve auto | cpu | cuda | mps, with an index where there are several.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if name.partition(":")[0] in ("cpu", "cuda", "mps"):
        with suppress(RuntimeError, AssertionError):
            return torch.empty(1, device=name).device
    raise InputError(f"device {name!r} is not available here: use auto, cpu, cuda or mps")


def model_spec(recipe: Recipe, data: DataSet) -> ModelSpec:
    """Give the network of a recipe: narrowed for small-dense, or what was alive at the end of an earlier run."""
    spec = recipe.model
    if recipe.start is not None and recipe.start.architecture == "alive":
        spec = living(Run.open(recipe.start.run).model())
    spec = spec.taking(data.input_shape)
    if "classes" in spec.network.options and "classes" not in spec.options:
        spec = spec.with_options(classes=data.classes)
    if recipe.sparsity.rule.narrow:
        spec = spec.with_options(width=width_for_density(spec, 1 - recipe.sparsity.sparsity))
    return spec


def build_job(recipe: Recipe, spec: ModelSpec, data: DataSet, device: torch.device, listener: Listener) -> Job:
    """Build everything the loop works with, as it is before the first step."""
    steps_per_epoch = _steps_per_epoch(recipe, data)
    model = build_initial(recipe, spec)
    _check_input(model, data, spec)
    model.to(device)
    optimizer = build_optimizer(model, recipe.optimizer)
    epochs = recipe.train.all_epochs
    sparse = Sparsifier(
        model,
        optimizer,
        in_training(recipe.scaled_sparsity),
        total_steps=steps_per_epoch * epochs,
        seed=recipe.seed,
        topology=_start_topology(recipe),
    )
    rate = recipe.learning_rate.per_step(steps_per_epoch, epochs, recipe.train.multiplier)
    forward = torch.compile(model) if recipe.train.compile else model
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.train.precision == "float16")
    return Job(model, forward, optimizer, sparse, rate, data, recipe.train, recipe.seed, device, listener, scaler)


def _steps_per_epoch(recipe: Recipe, data: DataSet) -> int:
    steps = len(data.train) // recipe.train.batch // recipe.train.accumulate
    if not steps:
        raise InputError(
            f"train.batch × train.accumulate is {recipe.train.batch * recipe.train.accumulate}, "
            f"but there are only {len(data.train)} training samples: choose smaller ones"
        )
    if not len(data.test):
        raise InputError(f"{data.name} has no test samples: add some, or hold out training samples (data.holdout)")
    return steps


def _check_input(model: nn.Module, data: DataSet, spec: ModelSpec) -> None:
    first = next(data.train[:1].in_order(1), None)
    if first is None:
        raise InputError(f"the first training sample of {data.name} cannot be read: replace it, or remove it")
    inputs, targets = first
    try:
        with torch.no_grad():
            answers = model.eval()(inputs.cpu())
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"model {spec.name!r} does not take inputs of shape {data.input_shape}: {reason}") from None
    if answers.shape[:-1] != targets.shape:
        raise InputError(
            f"model {spec.name!r} gives answers of shape {tuple(answers.shape)} to {data.name}, "
            f"expected {(*targets.shape, data.classes)}: use a model made for such data"
        )
    if answers.shape[-1] != data.classes:
        raise InputError(
            f"model {spec.name!r} gives {answers.shape[-1]} answers, {data.name} has {data.classes} classes"
        )


def _load_earlier_weights(model: nn.Module, start: StartConfig, spec: ModelSpec) -> None:
    run = Run.open(start.run)
    earlier = run.model() if start.weights == "final" else SparseModel.load(run.begin_file)
    load_weights(model, earlier.weights, f"{spec.name} (start.weights of {start.run})")


def _start_topology(recipe: Recipe) -> Topology | None:
    if recipe.start is not None and recipe.start.topology != "fresh":
        return Run.open(recipe.start.run).topology(recipe.start.topology)
    if recipe.sparsity.method == "lottery":
        raise InputError(
            'method "lottery" needs an earlier run: [start] run = "…", weights = "initial", topology = "end"'
        )
    return None


def _save_begin(run: Run, job: Job, spec: ModelSpec, recipe: Recipe) -> None:
    """Keep what training starts from: the topology, and all initial weights (lottery tickets need them)."""
    again = build_initial(recipe, spec)
    full = Topology.full(shapes_of(sparse_parameters(again)))
    SparseModel.capture(spec, again, full, 0, {}).save(run.begin_file)
    job.sparse.topology.save(run.topology_file("begin"))


def build_initial(recipe: Recipe, spec: ModelSpec) -> nn.Module:
    """Build the network with its initial weights, before any mask."""
    torch.manual_seed(recipe.seed)
    model = spec.build()
    if recipe.start is not None and recipe.start.weights != "fresh":
        _load_earlier_weights(model, recipe.start, spec)  # they were scaled by the earlier run
        return model
    initialize(model, recipe.init)
    scale_for_fan_in(model, recipe.scaled_sparsity.densities(model), recipe.init.sparse_power)
    return model


def _finish(run: Run, job: Job, spec: ModelSpec, recipe: Recipe, facts: dict[str, Any]) -> SparseModel:
    job.sparse.finish()
    topology = job.sparse.topology
    name = job.data.metric
    metrics = {"metric": name, f"final_{name}": job.seen[name], f"best_{name}": job.seen[f"best_{name}"]}
    model = SparseModel.capture(spec, job.model, topology, job.sparse.steps, metrics)
    topology.save(run.topology_file("end"))
    model.save(run.model_file)  # before anything that can fail
    result = {
        **metrics,
        **facts,
        **summarize(recipe, model, job),
        "left_dense": job.sparse.left_dense,
        "command": command_line(),
        "seed": recipe.seed,
        "recipe": recipe.name,
        "environment": environment() | {"threads": torch.get_num_threads(), "device": str(job.device)},
    }
    run.write_result(result)
    return replace(model, metrics=result)
