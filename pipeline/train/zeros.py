"""Dead weights are exactly zero: which optimizers leave them so, and how a change from outside is noticed."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn, optim

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.layer import Layer

# With a zero gradient and zero state these leave a zero weight at zero: they work weight by weight, or scale what the
# gradient says. Muon and LBFGS mix weights; of an optimizer from elsewhere nothing is known.
_KEEP_ZEROS: tuple[type[optim.Optimizer], ...] = (
    *(optim.SGD, optim.ASGD, optim.Rprop, optim.RMSprop, optim.Adagrad, optim.Adadelta, optim.Adafactor),
    *(optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam),
)
Mark = tuple[int, int]


def keeps_zeros(optimizer: optim.Optimizer) -> bool:
    """Say whether dead weights stay at zero under an optimizer that sees masked gradients.

    >>> keeps_zeros(torch.optim.AdamW([torch.zeros(1)])), keeps_zeros(torch.optim.LBFGS([torch.zeros(1)]))
    (True, False)
    """
    return type(optimizer) in _KEEP_ZEROS  # a subclass may do anything


def marks(tensors: Iterable[Tensor | None]) -> list[Mark]:
    """Give where tensors lie and how often they were written to, without waiting for the device.

    >>> tensor = torch.ones(2)
    >>> before = marks([tensor])
    >>> marks([tensor]) == before, marks([tensor.mul_(2)]) == before
    (True, False)
    """
    return [(0, 0) if tensor is None else (tensor.data_ptr(), tensor._version) for tensor in tensors]


def awake(layers: Sequence[Layer]) -> list[str]:
    """Name the layers with weights where no connection is. Waits for the device."""
    sparse = [layer for layer in layers if layer.active < layer.size and not layer.mask.is_meta]
    if not sparse:
        return []
    found = torch.stack([(layer.weight.detach()[~layer.mask] != 0).any().cpu() for layer in sparse])
    return [layer.name for layer, each in zip(sparse, found.tolist(), strict=True) if each]


def check_zeros(layers: Sequence[Layer]) -> None:
    """Raise where weights are not zero that the topology says are dead."""
    if names := awake(layers):
        raise InputError(
            f"{', '.join(names)}: weights are not zero where the topology is dead, they were loaded or changed after "
            "the Sparsifier was built: load its own state too (sparse.load_state_dict), or build it after loading"
        )


def check_place(layers: Sequence[Layer], owners: Sequence[nn.Module]) -> None:
    """Raise where the model no longer has the parameters that are trained."""
    for layer, owner in zip(layers, owners, strict=True):
        if owner._parameters.get(layer.part.parameter.rpartition(".")[2]) is not layer.parameter:
            raise InputError(
                f"the model's {layer.part.parameter!r} is not the parameter it was when the Sparsifier was built: "
                "build the optimizer and the Sparsifier after parameters are replaced"
            )
