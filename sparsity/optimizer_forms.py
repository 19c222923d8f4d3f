"""Parameters of sparse layers in an optimizer: those that get memory late, and state that is saved in dense form."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.sparse_layer import SparseLayer


@contextmanager
def allocated_in(optimizer: Optimizer, model: nn.Module) -> Iterator[None]:
    """Put parameters of the meta device that get memory meanwhile in their places in the optimizer."""
    before = {name: parameter for name, parameter in model.named_parameters() if parameter.is_meta}
    yield
    after = dict(model.named_parameters())
    replaced = {id(parameter): after[name] for name, parameter in before.items() if after[name] is not parameter}
    left = [name for name in before if after[name].is_meta]
    if replaced and left:
        raise InputError(
            f"{', '.join(left)} are on the meta device and do not train on sparse kernels: give them memory first "
            '(model.to_empty), or build these layers outside of torch.device("meta")'
        )
    for group in optimizer.param_groups if replaced else ():
        group["params"] = [replaced.get(id(parameter), parameter) for parameter in group["params"]]


def save_dense_state(optimizer: Optimizer, layers: Sequence[SparseLayer]) -> None:
    """Let `optimizer.state_dict` return the state of sparse layers in dense form, so that masked ones can load it."""
    if layers:
        optimizer.register_state_dict_post_hook(lambda _, state: _in_dense_form(optimizer, layers, state))


def _in_dense_form(optimizer: Optimizer, layers: Sequence[SparseLayer], state: dict[str, Any]) -> dict[str, Any]:
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    by_parameter = {id(layer.parameter): layer for layer in layers}
    found = dict(state["state"])
    for index, parameter in enumerate(trained):
        layer = by_parameter.get(id(parameter))
        if layer is not None and index in found:
            found[index] = {key: _dense(layer, value) for key, value in found[index].items()}
    return {**state, "state": found}


def _dense(layer: SparseLayer, value: Any) -> Any:
    fits = torch.is_tensor(value) and value.dim() == 1 and value.shape == layer.parameter.shape
    return layer.wiring.dense(value) if fits else value
