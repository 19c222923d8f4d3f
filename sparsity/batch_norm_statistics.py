"""Batch-norm statistics, re-estimated: those of the dense network are wrong once connections are gone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rigl_compress.core.errors import InputError


def batch_norm_layers(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch-norm layers (1d, 2d, 3d, synchronised) that keep running statistics.

    >>> len(batch_norm_layers(nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm2d(3, track_running_stats=False))))
    1
    """
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [module for module in found if module.running_mean is not None]


def recalibrate_batch_norm(model: nn.Module, batches: Iterable[Any], reference: nn.Module | None = None) -> int:
    """Re-estimate the running statistics of all batch-norm layers, and return the number of layers.

    Call it after pruning, or at the end of sparse training, before the network is evaluated. `batches` are some tens of
    training batches: inputs, or (inputs, targets) as a data loader gives them, or dictionaries of named inputs. The
    statistics become the plain average over them. All other layers are in evaluation mode meanwhile, no gradient is
    computed and no random number drawn; weights, modes and momenta are as before.

    `reference` is the dense network with its own statistics, e.g. `Distillation.teacher`. They are then kept, and only
    what differs between the two networks on these batches is changed: better where the batches are few, or unlike what
    the dense network was trained on.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    >>> recalibrate_batch_norm(model, [torch.randn(32, 4) for _ in range(10)])
    1
    """
    layers = batch_norm_layers(model)
    if not layers:
        return 0
    twin = None if reference is None else deepcopy(reference)
    _check_alike(layers, [] if twin is None else batch_norm_layers(twin), twin)
    _estimate([model] if twin is None else [model, twin], batches)
    if reference is not None and twin is not None:
        _shift(layers, batch_norm_layers(reference), batch_norm_layers(twin))
    return len(layers)


def _check_alike(layers: Sequence[_BatchNorm], others: Sequence[_BatchNorm], twin: nn.Module | None) -> None:
    own, other = ([layer.num_features for layer in each] for each in (layers, others))
    if twin is not None and own != other:
        raise InputError(
            f"the network has {len(own)} batch-norm layers of {sum(own)} channels, its reference {len(other)} of "
            f"{sum(other)}: the reference is the same network before it was pruned"
        )


def _estimate(networks: Sequence[nn.Module], batches: Iterable[Any]) -> None:
    given = iter(batches)
    first = next(given, None)
    if first is None:
        raise InputError("there is no batch to estimate batch-norm statistics from: pass at least one training batch")
    with torch.no_grad(), ExitStack() as held:
        for network in networks:
            held.enter_context(_estimating(network, batch_norm_layers(network)))
        for batch in chain([first], given):
            for network in networks:
                _seen(network, batch)


def _seen(network: nn.Module, batch: Any) -> None:
    try:
        forward_batch(network, batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InputError(
            "a batch has one value per channel, which has no variance: pass larger ones, and a data loader with "
            "drop_last=True"
        ) from None


def _shift(layers: Sequence[_BatchNorm], kept: Sequence[_BatchNorm], seen: Sequence[_BatchNorm]) -> None:
    """Undo what the batches alone changed in the reference: in means by the difference, in variances by the ratio."""
    for own, before, now in zip(layers, kept, seen, strict=True):
        mean, var = (getattr(own, f"running_{name}") for name in ("mean", "var"))
        mean.add_(before.running_mean - now.running_mean)  # type: ignore[operator]
        eps = before.eps  # what is divided by: the ratio is defined where a channel is constant, too
        ratio = (before.running_var + eps) / (now.running_var + eps)  # type: ignore[operator]
        var.copy_(((var + eps) * ratio - eps).clamp_min_(0))


@contextmanager
def _estimating(model: nn.Module, layers: list[_BatchNorm]) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    momenta = {layer: layer.momentum for layer in layers}
    before = [{name: buffer.clone() for name, buffer in layer.named_buffers()} for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch then averages over all batches alike
        layer.training = True
    try:
        yield
    except BaseException:  # half an estimate is worse than the old one
        for layer, buffers in zip(layers, before, strict=True):
            layer.load_state_dict(buffers, strict=False)
        raise
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        for module, mode in modes.items():
            module.training = mode


def forward_batch(model: nn.Module, batch: Any) -> None:
    """Run a network on a batch of a data loader: inputs by name, inputs and labels, or inputs alone."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        model(**{name: _moved(value, device) for name, value in batch.items()})
    else:
        model(_moved(batch[0] if isinstance(batch, list | tuple) else batch, device))


def _moved(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value
