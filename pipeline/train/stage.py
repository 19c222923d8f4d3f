"""The stage `train`: recipe → run folder with a sparse model."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from rigl_compress.core.dataclass_io import plain
from rigl_compress.core.errors import InputError
from rigl_compress.core.import_by_name import is_reference
from rigl_compress.core.provenance import command_line, environment
from rigl_compress.core.trust import code_is_trusted, may_import, named, only_named, record_trained_code, trusting_code
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.sparse_parameters import sparse_layers
from rigl_compress.pipeline.optimizers import build_optimizer
from rigl_compress.pipeline.prune.stage import keep_removals, prune, pruned_spec
from rigl_compress.pipeline.recipe import RUN_TOPOLOGIES, Recipe, StartConfig
from rigl_compress.pipeline.sparsity_account import sparsity_account, target_sparsity
from rigl_compress.pipeline.train.batch_norm_notes import report_batch_norm
from rigl_compress.pipeline.train.batch_sizes import batch_notes, with_batch_of
from rigl_compress.pipeline.train.checkpoint import load_checkpoint
from rigl_compress.pipeline.train.checkpoint_moments import Moments, stopping_on_sigterm
from rigl_compress.pipeline.train.data_parallel import localise_batch_norm, replicated, synchronise_batch_norm
from rigl_compress.pipeline.train.device_choice import find_device
from rigl_compress.pipeline.train.initial_network import (
    build_initial,
    frozen_note,
    keep_frozen_dense,
    start_topology,
    within_budget,
)
from rigl_compress.pipeline.train.input_check import check_input
from rigl_compress.pipeline.train.learned_weights import has_learned, normalisation_notes, random_start_notes
from rigl_compress.pipeline.train.losses import DivergedError
from rigl_compress.pipeline.train.metric_logging import MetricLogger, MetricLoggers, flat
from rigl_compress.pipeline.train.process_group import current_world
from rigl_compress.pipeline.train.progress import Listener, Log, ignore_message, ignore_progress
from rigl_compress.pipeline.train.pruned_start import OBS, prune_start
from rigl_compress.pipeline.train.run_recorder import RunRecorder
from rigl_compress.pipeline.train.same_everywhere import check_same_everywhere, sees_checkpoint
from rigl_compress.pipeline.train.small_dense import in_training, width_for_density
from rigl_compress.pipeline.train.teacher import build_distillation, check_teacher, keep_teacher, resumed
from rigl_compress.pipeline.train.training_loop import Job, train_epochs
from rigl_compress.pipeline.train.training_summary import Attempt, summarize
from rigl_compress.pipeline.train.warning_lines import warnings_to_log
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.kernel_choice import kernel_notes
from rigl_compress.sparsity.sparsifier import Sparsifier


@dataclass(frozen=True)
class RunEnvironment:
    """What the result of a run does not depend on: the device, the folder of data, listeners."""

    device: str = "auto"
    data_dir: Path | None = None
    listener: Listener = ignore_progress
    log: Log = ignore_message
    trust_code: bool = field(default_factory=code_is_trusted)  # of the earlier run that a recipe starts from
    named: set[str] | None = field(default_factory=named)  # code that may be run, in other processes too
    loggers: tuple[MetricLogger, ...] = ()  # called with (step, metrics) after every epoch


def train(
    recipe: Recipe,
    path: Path,
    run_environment: RunEnvironment | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> SparseModel:
    """Train a recipe in a run folder. `resume` starts from the last checkpoint, bit-identical on the CPU.

    In a process group of torch.distributed all processes train together; the first of them writes.
    """
    run_environment = run_environment or RunEnvironment()
    lock = Run(path).locked() if current_world().first else nullcontext()
    named_code = only_named(run_environment.named)
    with trusting_code(run_environment.trust_code), named_code, lock, warnings_to_log(run_environment.log):
        return _train(recipe, path, run_environment, resume=resume, overwrite=overwrite)


def _train(
    recipe: Recipe, path: Path, run_environment: RunEnvironment, *, resume: bool, overwrite: bool
) -> SparseModel:
    device, world = find_device(run_environment.device), current_world()
    _check_start(recipe.start, path)
    if not resume and world.first:
        Run(path).check_free(overwrite=overwrite)  # before data are fetched
    check_teacher(recipe, path)
    with world.first_before("data"):
        data = load_dataset(
            recipe.data.name, run_environment.data_dir, log=run_environment.log, options=recipe.data.options
        )
    data = data.hold_out(recipe.data.holdout) if recipe.data.holdout else data
    recipe = with_batch_of(data, recipe, run_environment.log)
    spec = model_spec(recipe, data)
    check_same_everywhere(world, recipe, data)
    earlier = Run.open(path) if resume else None
    goes_on = earlier is not None and sees_checkpoint(world, earlier.checkpoint_file)
    built = resumed(recipe, earlier) if earlier is not None and goes_on else recipe
    # All errors of the recipe are found before anything is written.
    job = build_job(built, spec, data.to(device), device, run_environment.listener, resumes=goes_on)
    for note in (*batch_notes(recipe, world), *(() if goes_on else job.notes)):
        run_environment.log(note)
    report_batch_norm(recipe, job.model, job.learned and not goes_on, run_environment.log)
    run = earlier or (Run.create(path, recipe, overwrite=overwrite) if world.first else Run(path))
    if world.first:
        _remember_code(run, recipe, spec, run_environment.log)
    began, begin = perf_counter(), None
    if goes_on:
        progress = load_checkpoint(run.checkpoint_file, job.model, job.optimizer, job.sparse)
        _restore_progress(job, progress, run.checkpoint_file)
        began, begin = began - progress["seconds"], progress["begin"]
    elif world.first:
        run.topology_file("start").unlink(missing_ok=True)
        _save_start(run, job)
        keep_teacher(run, recipe)
    job.initial = None
    if world.first:
        run.keep_metrics(job.epochs_done)

    loggers = MetricLoggers(run_environment.loggers)
    moments = Moments(recipe.train, world)
    recorder = RunRecorder(run, job, loggers, moments, began, begin or job.sparse.topology)
    recorder.saved = f"of epoch {job.epochs_done}" if job.epochs_done else ""
    job.after_step = recorder.after_step
    try:
        shown = loggers.during(str(run.path), flat(plain(recipe)))
        with shown, stopping_on_sigterm(moments):
            train_epochs(job, recorder.end_of_epoch)
    except DivergedError as error:
        kept = f"keeps the checkpoint {recorder.saved}" if recorder.saved else "has no checkpoint yet"
        raise DivergedError(f"{error}; {run.path} {kept}") from None
    model = _capture(job, spec)
    if not world.first:
        return model
    facts: dict[str, Any] = {"data": data.source, "seconds": round(perf_counter() - began, 1)}
    facts |= {"preprocessing": dict(data.preprocessing)} if data.preprocessing else {}
    model = _finish(run, job, model, within_budget(recipe, spec)[0], facts)
    for part, reason in model.metrics["not_counted"].items():
        run_environment.log(f"warning: {part} was not counted: {reason}")
    return model


def _check_start(start: StartConfig | None, path: Path) -> None:
    """Raise where a run would start from its own folder, which it is about to replace."""
    sources = {"run": start.run, "weights": start.file} if start is not None else {}
    for key, source in sources.items():
        if source is not None and path.resolve() in (Path(source).resolve(), Path(source).resolve().parent):
            raise InputError(f"start.{key} is {str(source)!r}, the folder of this run: choose another with --output")


def _restore_progress(job: Job, progress: Mapping[str, Any], file: Path) -> None:
    """Restore the progress of a checkpoint; raise if it cannot be of such a run."""
    done, every, scaler = progress["epochs_done"], job.config.all_epochs, dict(progress["scaler"])
    if not 0 <= done <= every or (done == every and job.data.metric not in progress["seen"]):
        raise InputError(f"{file} is of epoch {done} of {every} and incomplete: train again with overwrite=True")
    job.epochs_done, job.seen, job.recalibrated = done, dict(progress["seen"]), progress["recalibrated"]
    job.batches_done, job.losses_so_far = progress["batches_done"], progress["losses"]
    own, saved = ({key: type(value) for key, value in each.items()} for each in (job.scaler.state_dict(), scaler))
    if own != saved:
        raise InputError(
            f"{file} was written with another train.precision, or is damaged: train again with overwrite=True"
        )
    job.scaler.load_state_dict(scaler)


def _remember_code(run: Run, recipe: Recipe, spec: ModelSpec, log: Log) -> None:
    """Record, outside of the run folder, that the user trusts the code of this run."""
    every = [*recipe.references, (spec.name, spec.options)]
    # A recipe that starts from an earlier network names a model that is never built: it is not trusted by that.
    calls = [(name, options) for name, options in every if is_reference(name) and may_import(name)]
    try:
        if calls:
            record_trained_code(run.path, calls)
    except OSError as error:
        log(f"cannot record that {calls[0][0]} is trusted ({error}): later commands on {run.path} need --trust-code")


def model_spec(recipe: Recipe, data: DataSet) -> ModelSpec:
    """Return the network of a recipe: narrowed for small-dense, or an earlier run's without its dead neurons."""
    spec = recipe.model
    if recipe.start is not None and recipe.start.architecture == "pruned":
        spec = pruned_spec(Run.open(str(recipe.start.run)))
    spec = spec.taking(data.input_shape)
    spec = spec.with_classes(data.classes).completed()
    if recipe.sparsity.rule.narrow:
        spec = spec.with_options(width=width_for_density(spec, 1 - recipe.sparsity.sparsity))
    return spec


def build_job(
    recipe: Recipe, spec: ModelSpec, data: DataSet, device: torch.device, listener: Listener, resumes: bool = False
) -> Job:
    """Build everything that the loop works with, as before the first step; `resumes`: a checkpoint is loaded next."""
    steps_per_epoch = _steps_per_epoch(recipe, data)
    recipe, budget = within_budget(recipe, spec)
    network, topology = build_initial(recipe, spec), start_topology(recipe)
    model, initial = network.model, network.captured(spec)
    check_input(model, data, spec)
    model.to(device)
    if recipe.train.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    learned = resumes or has_learned(recipe, spec, model)
    distillation = build_distillation(recipe, model, data.classes, learned)  # the teacher is copied before any mask
    optimizer = build_optimizer(model, recipe.optimizer)
    epochs = recipe.train.all_epochs
    config = keep_frozen_dense(in_training(recipe.scaled_sparsity), model)
    replaced = recipe.start is not None and recipe.start.file is not None
    images = () if replaced else normalisation_notes(model, data.preprocessing, spec.name)
    fit = (*images, *random_start_notes(recipe, topology, learned))
    notes = (*network.notes, *fit, *frozen_note(model, topology), *budget)
    pruned = topology == OBS
    topology = prune_start(recipe, config, model, data) if pruned else topology
    sparse = Sparsifier(
        model,
        optimizer,
        config,
        total_steps=steps_per_epoch * epochs,
        seed=recipe.seed,
        topology=topology,
    )
    rate = recipe.learning_rate.per_step(steps_per_epoch, epochs, recipe.train.multiplier)
    world = current_world()
    if recipe.train.sync_batch_norm:
        synchronise_batch_norm(model, world)
    example = next(data.train[:1].in_order(1))[0]
    forward = replicated(torch.compile(model) if recipe.train.compile else model, model, example, world)
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.train.precision == "float16")
    return Job(
        *(model, forward, optimizer, sparse, rate, data, recipe.train, recipe.seed, device, listener, scaler),
        distillation=distillation,
        dense=distillation.teacher if distillation and recipe.distill and recipe.distill.run is None else None,
        initial=initial,
        learned=learned,
        notes=(*notes, *kernel_notes(sparse.masked, sparse_layers(model), recipe.sparsity.kernels)),
        recalibrated=-1 if pruned else 0,
        world=world,
    )


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


def _save_start(run: Run, job: Job) -> None:
    """Save the topology and all weights at the start of training (lottery tickets need them)."""
    if job.initial is not None:
        job.initial.save(run.initial_file)
    job.sparse.topology.save(run.topology_file("start"))


def _capture(job: Job, spec: ModelSpec) -> SparseModel:
    job.sparse.finish()
    localise_batch_norm(job.model)
    name = job.data.metric
    metrics = {"metric": name, f"final_{name}": job.seen[name], f"best_{name}": job.seen[f"best_{name}"]}
    return SparseModel.capture(spec, job.model, job.sparse.topology, job.sparse.steps, metrics)


def _finish(run: Run, job: Job, model: SparseModel, recipe: Recipe, facts: dict[str, Any]) -> SparseModel:
    model.topology.save(run.topology_file("end"))
    model.save(run.model_file)  # before anything that can fail
    pruned = Attempt(lambda: prune(model))
    if pruned.value is not None:
        keep_removals(run, pruned.value.removals)
    word, start = (recipe.start or StartConfig()).topology, run.topology("start")
    given, shares = start if word in RUN_TOPOLOGIES else None, start if word == "magnitude-global" else None
    result = {
        **model.metrics,
        **facts,
        **summarize(recipe, model, job, pruned),
        "left_dense": job.sparse.left_dense,
        "target_sparsity": target_sparsity(job.sparse, given),
        "sparsity_by_weight": [asdict(each) for each in sparsity_account(job.model, job.sparse, given, shares)],
        "command": command_line(),
        "seed": recipe.seed,
        "recipe": recipe.name,
        "environment": environment()
        | {"threads": torch.get_num_threads(), "device": str(job.device)}
        | ({} if job.world.alone else {"processes": job.world.count}),
    }
    run.write_result(result)
    return replace(model, metrics=result)
