"""The network that training starts from: its weights, and the topology it begins with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.wording import listed
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.sparse_parameters import shapes_of, sparse_parameters
from rigl_compress.models.topology import Topology
from rigl_compress.models.weight_files import EXPECTED, WeightFile, read_weights
from rigl_compress.models.weight_fitting import load_fitting
from rigl_compress.pipeline.budget_distribution import budget_lines
from rigl_compress.pipeline.recipe import RUN_TOPOLOGIES, RUN_WEIGHTS, START_WEIGHTS, Recipe, StartConfig
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.initialization import InitConfig, initialize, scale_for_fan_in
from rigl_compress.sparsity.sparsity_config import SparsityConfig


@dataclass(frozen=True)
class InitialNetwork:
    """A network with its initial weights, before any mask, and where they come from, in lines for the user."""

    model: nn.Module
    notes: tuple[str, ...] = ()

    def captured(self, spec: ModelSpec) -> SparseModel:
        """Return a copy of all weights, with a full topology: what lottery tickets start from."""
        full = Topology.full(shapes_of(sparse_parameters(self.model)))
        return SparseModel.capture(spec, self.model, full, 0, {})


def within_budget(recipe: Recipe, spec: ModelSpec) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe with the sparsity of every layer, and a line about it, if a budget decides it."""
    if not recipe.sparsity.solves:
        return recipe, ()
    model, example = spec.outline()
    sparsity = keep_frozen_dense(recipe.sparsity, model).fitted(model, example)
    idle = [each for each in recipe.sparsity.ignored() if each not in sparsity.ignored()]
    return replace(recipe, sparsity=sparsity), (*budget_lines(sparsity, model, example), *idle)


def build_initial(recipe: Recipe, spec: ModelSpec) -> InitialNetwork:
    """Build the network with its initial weights."""
    torch.manual_seed(recipe.seed)
    start = recipe.start or StartConfig()
    model = spec.build() if start.weights in RUN_WEIGHTS else spec.build_loaded()
    if start.weights == "fresh":
        return InitialNetwork(model, _draw(model, recipe, spec))
    notes = _kept(spec) if start.weights == "model" else _load(model, start, spec)
    return InitialNetwork(model, (*notes, *_unused_init(recipe)))


def _unused_init(recipe: Recipe) -> tuple[str, ...]:
    return () if recipe.init == InitConfig() else ("[init] is not used: the weights are not drawn",)


def _draw(model: nn.Module, recipe: Recipe, spec: ModelSpec) -> tuple[str, ...]:
    """Draw the weights as [init] has it. What other code has built or loaded is kept unless [init] asks for more."""
    if spec.is_pretrained:
        return (*_kept(spec), *_unused_init(recipe))
    initialize(model, recipe.init)
    scale_for_fan_in(model, recipe.scaled_sparsity.densities(model), recipe.init.sparse_power)
    if spec.network.is_ours:
        return ()
    if recipe.init == InitConfig():
        return _kept(spec)
    how = "scaled" if recipe.init.weights == "network" else f"drawn again ({recipe.init.weights})"
    return (f"initial weights: {how} by [init] of the recipe; leave the table out to keep what {spec.name} returns",)


def _kept(spec: ModelSpec) -> tuple[str, ...]:
    if spec.network.library and not spec.is_pretrained and spec.plan is None:
        return (f"initial weights: random, as {spec.name} draws them; trained ones: model.options.pretrained = true",)
    return (f"initial weights: as {spec.name} returns them",)


def _load(model: nn.Module, start: StartConfig, spec: ModelSpec) -> tuple[str, ...]:
    found = _of_run(start) if start.weights in RUN_WEIGHTS else _of_file(start.weights)
    where = f"start.weights, {found.path}"
    try:
        as_built = load_fitting(model, found.tensors, where, start.rename, start.skip)
    except InputError as error:
        raise InputError(f"{error}{_by_library(start, spec)}") from None
    return (f"initial weights: {found.path}{_notes(found.notes)}{_notes(_as_built(model, as_built))}",)


def _by_library(start: StartConfig, spec: ModelSpec) -> str:
    """Say that the library itself reads a folder that it wrote: it knows the names of its earlier versions."""
    written = spec.network.library == "transformers" and (Path(start.weights) / "config.json").is_file()
    return f", or let transformers read the folder: --model hf:{start.weights}" if written else ""


def _notes(notes: tuple[str, ...]) -> str:
    return "".join(f"; {note}" for note in notes)


def _as_built(model: nn.Module, names: list[str]) -> tuple[str, ...]:
    own: Mapping[str, Tensor] = model.state_dict()
    return (f"as built: {listed({name: own[name].numel() for name in names}, most=4)}",) if names else ()


def _of_run(start: StartConfig) -> WeightFile:
    run = Run.open(str(start.run))
    if start.weights == "final":
        return WeightFile(run.model_file, run.model().weights)
    return WeightFile(run.initial_file, SparseModel.load(run.initial_file).weights)


def _of_file(name: str) -> WeightFile:
    if not Path(name).exists():
        raise InputError(
            f"start.weights is {str(name)!r}, which does not exist: pass {EXPECTED}, or one of the words "
            f"{', '.join(START_WEIGHTS)}"
        )
    try:
        return read_weights(Path(name))
    except InputError as error:
        raise InputError(f"start.weights: {error}") from None


def start_topology(recipe: Recipe) -> Topology | str | None:
    """Return the topology that training begins with: of an earlier run, or how it is chosen; None: by the method."""
    start = recipe.start or StartConfig()
    if start.topology in RUN_TOPOLOGIES:
        return Run.open(str(start.run)).topology(start.topology)
    if start.topology != "fresh":
        return str(start.topology)
    if (method := recipe.sparsity.rule).needs_topology:
        raise InputError(
            f'method "{method.name}" needs an earlier run: [start] run = "…", weights = "initial", topology = "end"'
        )
    return None


def keep_frozen_dense(config: SparsityConfig, model: nn.Module) -> SparsityConfig:
    """Return the settings with the layers that are not trained kept dense: they could not make up for lost weights."""
    frozen = [name for name, parameter in sparse_parameters(model).items() if not parameter.requires_grad]
    return config.keeping_dense(frozen, model) if frozen and not config.rule.dense else config


def frozen_note(model: nn.Module, topology: Topology | str | None) -> tuple[str, ...]:
    """Return a line about parameters that are not trained."""
    frozen = {name: each.numel() for name, each in model.named_parameters() if not each.requires_grad}
    if not frozen:
        return ()
    how = "sparse as the given topology has them" if isinstance(topology, Topology) else "dense"
    return (f"not trained, {how}: {listed(frozen, most=4)}",)
