"""Inactive weights are exactly zero: how changes by other code are detected."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.tensor_blocks import any_outside
from rigl_compress.sparsity.layer_state import Layer

Version = tuple[int, int]


def tensor_versions(tensors: Iterable[Tensor | None]) -> list[Version]:
    """Return where tensors lie and how often they were written to, without waiting for the device.

    >>> tensor = torch.ones(2)
    >>> before = tensor_versions([tensor])
    >>> tensor_versions([tensor]) == before, tensor_versions([tensor.mul_(2)]) == before
    (True, False)
    """
    return [(0, 0) if tensor is None else (tensor.data_ptr(), tensor._version) for tensor in tensors]


def nonzero_inactive(layers: Sequence[Layer]) -> list[str]:
    """Return the names of layers with weights at inactive connections. Waits for the device."""
    sparse = [layer for layer in layers if layer.masked and not layer.mask.is_meta]
    if not sparse:
        return []
    found = torch.stack([any_outside(layer.weight, layer.mask).cpu() for layer in sparse])
    return [layer.name for layer, each in zip(sparse, found.tolist(), strict=True) if each]


def check_zeros(layers: Sequence[Layer]) -> None:
    """Raise where the weight of an inactive connection is not zero."""
    if names := nonzero_inactive(layers):
        raise nonzero_error(names, [layer.weight for layer in layers if layer.name in names])


def nonzero_error(names: Sequence[str], weights: Iterable[Tensor]) -> InputError:
    """Return the error for weights that are not zero at inactive connections."""
    if all(bool(weight.isfinite().all()) for weight in weights):
        why = (
            "weights of inactive connections are not zero, they were loaded or changed after the Sparsifier was built: "
            "load its own state too (sparse.load_state_dict), or build it after loading"
        )
    else:
        why = "weights are not finite, the training has diverged: begin again with a lower learning rate"
    return InputError(f"{', '.join(names)}: {why}")


def check_parameters(layers: Sequence[Layer], owners: Sequence[nn.Module]) -> None:
    """Raise where the model no longer has the parameters that are trained."""
    for layer, owner in zip(layers, owners, strict=True):
        if owner._parameters.get(layer.part.parameter.rpartition(".")[2]) is not layer.parameter:
            raise InputError(
                f"the model's {layer.part.parameter!r} is not the parameter it was when the Sparsifier was built: "
                "build the optimizer and the Sparsifier after parameters are replaced"
            )
