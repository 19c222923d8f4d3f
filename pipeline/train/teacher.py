"""The teacher of a run: the network that training starts from, or that of an earlier run."""

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.recipe import Recipe, StartConfig
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.distillation import Distillation


def build_distillation(recipe: Recipe, model: nn.Module, classes: int, learned: bool) -> Distillation | None:
    """Build what `[distill]` asks for. `model` is the network with its initial weights, before any mask."""
    config = recipe.distill
    if config is None:
        return None
    if config.run is None and not learned:
        raise InputError(
            "distill has no teacher: the run starts from random weights, and a network at random initialisation "
            "teaches nothing; set weights to start from ([start]), or an earlier run (distill.run)"
        )
    return Distillation(
        model if config.run is None else earlier_network(config.run).build().to(_device(model)),
        weight=config.weight,
        temperature=config.temperature,
        loss=config.loss_for(classes),
        hidden=config.hidden,
        hidden_weight=config.hidden_weight,
        student=model,
    )


def earlier_network(run: str) -> SparseModel:
    """Return the trained network of a run folder, or of a file that has one."""
    return SparseModel.load(run) if Path(run).is_file() else Run.open(run).model()


def check_teacher(recipe: Recipe, path: Path) -> None:
    """Raise if the teacher is the run itself, whose folder is about to be replaced."""
    name = None if recipe.distill is None else recipe.distill.run
    if name is not None and Path(name).resolve() == path.resolve():
        raise InputError(f"distill.run is {name!r}, the folder of this run: choose another with --output")


def teacher_facts(recipe: Recipe) -> dict[str, int]:
    """Return when the network of `distill.run` was written: what training depends on beside the recipe."""
    if recipe.distill is None or recipe.distill.run is None:
        return {}
    file = Run(Path(recipe.distill.run)).model_file
    return {"teacher": file.stat().st_mtime_ns} if file.exists() else {}


def keep_teacher(run: Run, recipe: Recipe) -> None:
    """Copy the network of `distill.run` into the run folder: it can be resumed without the other one."""
    if recipe.distill is not None and recipe.distill.run is not None:
        earlier_network(recipe.distill.run).save(run.teacher_file)


def resumed(recipe: Recipe, run: Run) -> Recipe:
    """Return the recipe for resuming a run: what it started from is in its own folder, and may be gone elsewhere."""
    start, distill = recipe.start, recipe.distill
    if start is not None:
        weights = "initial" if run.initial_file.exists() else "model"
        start = StartConfig(str(run.path), weights, "fresh" if start.topology == "fresh" else "start")
    if distill is not None and run.teacher_file.exists():
        distill = replace(distill, run=str(run.teacher_file))
    return replace(recipe, start=start, distill=distill)


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
