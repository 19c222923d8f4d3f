"""Checkpoints: everything that a run needs to resume with the same bits as an uninterrupted one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_model import load_weights
from rigl_compress.models.sparse_modules import dense_shapes
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.sparsifier_state import (
    StateHeader,
    masks_and_memory,
    state_header,
    state_tensors,
    tensors_below,
)

KIND = "checkpoint"


@dataclass(frozen=True)
class _Progress:
    """The progress of training: epochs, the latest and the best values, seconds, the gradient scaler's state.

    `recalibrated` is the number of topology updates at the last estimate of batch-norm statistics; `batches_done` and
    `losses` are of the epoch that was begun.
    """

    epochs_done: int
    seen: Mapping[str, float | None]
    seconds: float
    scaler: Mapping[str, Any]
    recalibrated: int = 0
    batches_done: int = 0
    losses: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class _Header(StateHeader):
    """The header beside the tensors."""

    progress: _Progress
    optimizer: Mapping[str, Any]
    gates: Mapping[str, Any]


def save_checkpoint(
    path: Path, model: nn.Module, optimizer: Optimizer, sparse: Sparsifier, progress: Mapping[str, Any]
) -> None:
    """Write model, optimizer, topology and random state as one file, atomically.

    Within an epoch, `progress` also has the topology of its beginning as `begin`.
    """
    state = sparse.state_dict()
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= state_tensors(state)
    gates = state["gates"] or {"tensors": {}}
    tensors |= {f"gate/{name}": tensor for name, tensor in gates["tensors"].items()}
    tensors["random"] = torch.get_rng_state()
    tensors |= {f"begin/{name}": mask for name, mask in progress.get("begin", {}).items()}
    optimizer_tensors, optimizer_numbers = _split(_states(_trained(model, sparse), optimizer))
    content = {
        "progress": {key: value for key, value in progress.items() if key != "begin"},
        **state_header(state),
        "optimizer": optimizer_numbers,
        "gates": {key: value for key, value in gates.items() if key != "tensors"},
    }
    save_artifact(path, KIND, tensors | optimizer_tensors, content)


def load_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, sparse: Sparsifier) -> dict[str, Any]:
    """Load a checkpoint into a freshly built run and return its progress."""
    tensors, content = load_artifact(path, KIND)
    try:
        header = parse(_Header, content)
        load_weights(model, tensors_below(tensors, "model/"), "the run's recipe")
        state = tensors_below(tensors, "optimizer/") | dict(header.optimizer)
        _load_optimizer(_trained(model, sparse), dense_shapes(model), optimizer, state)
        _load_sparse(sparse, tensors, content)
        torch.set_rng_state(tensors["random"])
    except (InputError, KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error) if isinstance(error, InputError) else f"it is damaged ({type(error).__name__}: {error})"
        cure = "restore the run's checkpoint, or train again with overwrite=True"
        raise InputError(f"{path}: {' '.join(reason.split())}; {cure}") from None
    begin = tensors_below(tensors, "begin/")
    return {**vars(header.progress), "begin": Topology(begin) if begin else None}


def _load_sparse(sparse: Sparsifier, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> None:
    gates = {**content.get("gates", {}), "tensors": tensors_below(tensors, "gate/")}
    sparse.load_state_dict({**content, **masks_and_memory(tensors), "gates": gates})


def _trained(model: nn.Module, sparse: Sparsifier) -> dict[str, nn.Parameter]:
    gates = sparse.updater.parameters
    return dict(model.named_parameters()) | {f"gate/{name}": parameter for name, parameter in gates.items()}


def _states(parameters: Mapping[str, nn.Parameter], optimizer: Optimizer) -> dict[str, dict[str, Any]]:
    """Return the state of each parameter; that of sparse layers in dense form, as `optimizer.state_dict` has it."""
    saved = optimizer.state_dict()["state"]
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = {id(parameter): saved.get(index, {}) for index, parameter in enumerate(trained)}
    return {name: dict(states.get(id(parameter), {})) for name, parameter in parameters.items()}


def _split(states: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, numbers = {}, {}
    for name, state in states.items():
        for key, value in state.items():
            if torch.is_tensor(value):
                tensors[f"optimizer/{name}/{key}"] = value
            else:
                numbers[f"{name}/{key}"] = value
    return tensors, numbers


def _load_optimizer(
    parameters: Mapping[str, nn.Parameter],
    shapes: Mapping[str, torch.Size],
    optimizer: Optimizer,
    state: Mapping[str, Any],
) -> None:
    """Restore the state of each parameter; the sparsifier takes what it needs of dense state of sparse layers."""
    for path, value in state.items():
        name, _, key = path.rpartition("/")
        if name not in parameters:
            raise InputError(
                f"the checkpoint holds optimizer state of {name!r}, which the model lacks: it is another model's"
            )
        if torch.is_tensor(value) and value.dim() and value.shape != shapes.get(name, parameters[name].shape):
            raise InputError(f"the optimizer's {key!r} of {name!r} has shape {tuple(value.shape)}: another model's")
        if torch.is_tensor(value) and (value.dim() or optimizer.defaults.get("fused")):
            value = value.to(parameters[name].device)  # step counters stay on the CPU, except with fused optimizers
        optimizer.state[parameters[name]][key] = value
