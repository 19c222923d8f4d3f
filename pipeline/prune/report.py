"""What pruning gained, and proof that nothing else changed."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.exporters.sizes import network_bytes
from rigl_compress.models.errors import InputError
from rigl_compress.models.flops import count_flops
from rigl_compress.models.prune_plan import PrunePlan
from rigl_compress.models.resize import size_of
from rigl_compress.models.topology import Topology
from rigl_compress.models.tracing import evaluating
from rigl_compress.pipeline.prune.graph import copied

FEW_LAYERS = 6  # more are told in sum


@dataclass(frozen=True)
class Size:
    """What a network takes."""

    parameters: int
    nonzeros: int  # weights alive, and all other parameters
    flops: float  # of one example input, multiply-adds of living weights
    dense_flops: float
    bitmask_bytes: float  # the paper's convention


@dataclass(frozen=True)
class PruneReport:
    """Before and after, and the largest difference of the outputs, measured."""

    architecture: str
    before: Size
    after: Size
    difference: float  # largest, of all outputs on the inputs tried
    relative_difference: float  # the same over the largest output
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        return {"format": 1, **asdict(self), "notes": list(self.notes)}


def make_report(
    model: nn.Module, topology: Topology, small: nn.Module, left: Topology, plan: PrunePlan, example: Any
) -> PruneReport:
    """Measure both networks. One that computes something else is refused: better none than a wrong one."""
    difference, largest, rounding = _compare(model, small, example)
    relative = difference / largest if largest else difference
    if relative > rounding**0.5:
        raise InputError(
            f"{type(model).__name__} gives other outputs without its dead neurons ({relative:.2g} of the largest): "
            "it draws random numbers in evaluation mode, or hides something from torch.fx; prune the rest of it"
        )
    return PruneReport(
        architecture=f"{_architecture(model)} → {_architecture(small)}",
        before=_size(model, topology, example),
        after=_size(small, left, example),
        difference=difference,
        relative_difference=relative,
        notes=plan.notes,
    )


def _size(model: nn.Module, topology: Topology, example: Any) -> Size:
    report = count_flops(model, example, topology)
    parameters = dict(model.named_parameters())
    total = sum(parameter.numel() for parameter in parameters.values())
    dead = topology.total - topology.active
    return Size(total, total - dead, report.sparse, report.dense, network_bytes(parameters, topology))


def _architecture(model: nn.Module) -> str:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.GRU)]
    widths = [size_of(layer)[1] for layer in layers]
    if len(layers) > FEW_LAYERS or not layers:
        return f"{sum(widths):,} units in {len(layers)} layers"
    return "-".join(map(str, [size_of(layers[0])[0], *widths[:-1]]))


@torch.no_grad()
def _compare(model: nn.Module, small: nn.Module, example: Any) -> tuple[float, float, float]:
    """Run both on the example and on random inputs of its shape.

    Gives the largest difference, the largest output, and the rounding of the outputs' precision.
    """
    difference = largest = rounding = 0.0
    with evaluating(model, small):
        for inputs in (_tuple(example), _random_like(_tuple(example))):
            answers = (_tensors(network(*copied(inputs))) for network in (model, small))
            for one, other in zip(*answers, strict=True):
                difference = max(difference, _difference(one, other))
                largest = max(largest, float(one.double().abs().nan_to_num().max()) if one.numel() else 0.0)
                rounding = max(rounding, torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0)
    return difference, largest, rounding


def _difference(one: Tensor, other: Tensor) -> float:
    """Give the largest difference: infinite where only one of them is a number."""
    same = torch.isclose(one.double(), other.double(), rtol=0, atol=0, equal_nan=True)
    apart = (one.double() - other.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    return float(torch.where(same, 0.0, apart).max()) if one.numel() else 0.0


def _tuple(example: Any) -> tuple[Any, ...]:
    return example if isinstance(example, tuple) else (example,)


def _random_like(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    rng = torch.Generator().manual_seed(0)

    def random(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return torch.randn(value.shape, generator=rng).to(value)

    return tuple(random(value) for value in inputs)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = tuple(value.values())
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, tuple | list) else []
