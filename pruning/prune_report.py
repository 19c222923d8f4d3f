"""Sizes before and after pruning, and the difference of the outputs."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.fx_tracing import evaluating
from rigl_compress.models.layer_resizing import CONVOLUTIONS, RECURRENT, TRANSPOSED, size_of
from rigl_compress.models.nested_tensors import as_call, tensors_in
from rigl_compress.models.storage_size import network_bytes
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.traced_graph import copied

Network = tuple[nn.Module, Topology]
_COUNTED = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED, *RECURRENT)
FEW_LAYERS = 6  # of more, only the sum of their units is shown


@dataclass(frozen=True)
class Size:
    """The size and the cost of a network."""

    parameters: int
    nonzeros: int  # active weights, and all other parameters
    flops: float  # of one example input, of active weights
    dense_flops: float
    bitmask_bytes: float  # the paper's convention


@dataclass(frozen=True)
class PruneReport:
    """Sizes before and after, and the measured largest difference of the outputs."""

    architecture: str
    before: Size
    after: Size
    difference: float  # largest, of all outputs on the inputs tried
    relative_difference: float  # the same over the largest output
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"format": 1, **asdict(self), "notes": list(self.notes)}


def make_report(before: Network, after: Network, notes: tuple[str, ...], example: Any) -> PruneReport:
    """Measure both networks, and raise if they compute different outputs."""
    (model, _), (small, _) = before, after
    difference, largest, rounding = _compare(model, small, example)
    relative = difference / largest if largest else difference
    if relative > rounding**0.5:
        raise InputError(
            f"{type(model).__name__} has other outputs without its dead neurons ({relative:.2g} of the largest): "
            "it draws random numbers in evaluation mode, computes with the number of its channels, or does something "
            "that tracing does not see; prune the other parts of it"
        )
    return PruneReport(
        architecture=f"{_architecture(model)} → {_architecture(small)}",
        before=_size(*before, example),
        after=_size(*after, example),
        difference=difference,
        relative_difference=relative,
        notes=notes,
    )


def _size(model: nn.Module, topology: Topology, example: Any) -> Size:
    report = count_flops(model, example, topology)
    parameters = dict(model.named_parameters())
    total = sum(parameter.numel() for parameter in parameters.values())
    dead = topology.total - topology.active
    return Size(total, total - dead, report.sparse, report.dense, network_bytes(parameters, topology))


def _architecture(model: nn.Module) -> str:
    layers = [module for module in model.modules() if isinstance(module, _COUNTED)]
    widths = [size_of(layer)[1] for layer in layers]
    if len(layers) > FEW_LAYERS or not layers:
        return f"{sum(widths):,} units in {len(layers)} layers"
    return "-".join(map(str, [size_of(layers[0])[0], *widths[:-1]]))


@torch.no_grad()
def _compare(model: nn.Module, small: nn.Module, example: Any) -> tuple[float, float, float]:
    """Run both networks on the example and on random inputs of its shape.

    Returns the largest difference, the largest output, and the rounding error of the outputs' precision.
    """
    difference = largest = rounding = 0.0
    with evaluating(model, small):
        args, kwargs = as_call(example)
        for inputs in ((*args, *kwargs.values()), _random_like((*args, *kwargs.values()))):
            answers = (tensors_in(_run(network, copied(inputs), (*kwargs,))) for network in (model, small))
            for one, other in zip(*answers, strict=True):
                difference = max(difference, _difference(one, other))
                largest = max(largest, float(one.double().abs().nan_to_num().max()) if one.numel() else 0.0)
                rounding = max(rounding, torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0)
    return difference, largest, rounding


def _run(model: nn.Module, inputs: tuple[Any, ...], names: tuple[str, ...]) -> Any:
    """Run a network; the last inputs have names."""
    unnamed = len(inputs) - len(names)
    try:
        return model(*inputs[:unnamed], **dict(zip(names, inputs[unnamed:], strict=True)))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"{type(model).__name__} does not run without its dead neurons ({first_line(error)}): its code computes "
            "with the number of its channels; write sizes as -1, or prune the other parts of it"
        ) from None


def _difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference: infinite where only one of them is a number."""
    same = torch.isclose(one.double(), other.double(), rtol=0, atol=0, equal_nan=True)
    apart = (one.double() - other.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(torch.where(same, 0.0, apart).max()) if one.numel() else 0.0


def _random_like(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    rng = torch.Generator().manual_seed(0)

    def random(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return torch.randn(value.shape, generator=rng).to(value)

    return tuple(random(value) for value in inputs)
