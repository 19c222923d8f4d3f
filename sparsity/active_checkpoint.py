"""Checkpoints of the active connections alone, for networks whose dense weights would not fit into memory.

`state_dict` of a model, an optimizer and a sparsifier have the dense form of sparse layers, so that they fit masked
ones. Here a layer has positions and values, in the order of the positions.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.artifacts import load_artifact, save_artifact
from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.connections import Connections
from rigl_compress.sparsity.kernel_choice import FULL
from rigl_compress.sparsity.sparse_layer import SparseLayer
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.sparsifier_state import StateHeader, tensors_below

KIND = "active-checkpoint"


def save_active(path: Path, model: nn.Module, sparse: Sparsifier) -> None:
    """Write everything that a training needs to resume as one file; of sparse layers, the active connections alone."""
    layers = _sparse_layers(sparse)
    tensors = {f"model/{name}": tensor for name, tensor in _others(model, layers)}
    for name, layer in layers.items():
        tensors[f"positions/{name}"] = layer.positions
        tensors[f"model/{name}"] = layer.wiring.ascending(layer.parameter.detach())
    for name, key, value in _optimizer_state(model, sparse.optimizer):
        layer_or_none = layers.get(name) if value.dim() else None
        tensors[f"optimizer/{name}/{key}"] = layer_or_none.wiring.ascending(value) if layer_or_none else value
    tensors["random"] = torch.get_rng_state()
    save_artifact(path, KIND, tensors, sparse.numbers)


def load_active(path: Path, model: nn.Module, sparse: Sparsifier) -> None:
    """Restore what `save_active` wrote into a network that was built and made sparse alike."""
    tensors, content = load_artifact(path, KIND)
    parse(StateHeader, content)
    layers, others = _sparse_layers(sparse), dict(_others(model, _sparse_layers(sparse)))
    if {*tensors_below(tensors, "model/")} != {*others, *layers}:
        raise InputError(f"{path} is of another model: build the network as it was when the checkpoint was written")
    for name, layer in layers.items():
        layer.take(tensors[f"positions/{name}"], tensors[f"model/{name}"])
    with torch.no_grad():
        for name, tensor in others.items():
            tensor.copy_(tensors[f"model/{name}"])
    _load_optimizer(model, sparse.optimizer, layers, tensors_below(tensors, "optimizer/"))
    torch.set_rng_state(tensors["random"])
    sparse.load_numbers(content)


def _sparse_layers(sparse: Sparsifier) -> dict[str, SparseLayer]:
    """Return the sparse layers by the names of their weights; raise if any layer is masked."""
    layers = sparse.updater.sparse_layers if isinstance(sparse.updater, Connections) else []
    masked = [name for name, reason in sparse.masked.items() if reason != FULL]
    if not layers or masked:
        raise InputError(
            f"{', '.join(masked) or 'no layer'} does not train on sparse kernels: save the state_dict of model, "
            "optimizer and sparsifier instead"
        )
    return {layer.part.parameter: layer for layer in layers}


def _others(model: nn.Module, layers: Mapping[str, SparseLayer]) -> Iterator[tuple[str, Tensor]]:
    """Return all parameters and buffers but the weights of sparse layers, to be read and written."""
    yield from ((name, each.detach()) for name, each in model.named_parameters() if name not in layers)
    yield from model.named_buffers()


def _optimizer_state(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, str, Tensor]]:
    """Return the name of a parameter, that of its state, and the tensor."""
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(value):
                yield name, key, value


def _load_optimizer(
    model: nn.Module, optimizer: Optimizer, layers: Mapping[str, SparseLayer], state: Mapping[str, Tensor]
) -> None:
    parameters = dict(model.named_parameters())
    for path, value in state.items():
        name, _, key = path.rpartition("/")
        layer = layers.get(name) if value.dim() else None
        optimizer.state[parameters[name]][key] = layer.wiring.packed(value) if layer else value
