"""What pruning gained, and proof that nothing else changed."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.exporters.sizes import network_bytes
from rigl_compress.models.flops import count_flops
from rigl_compress.models.prune_plan import PrunePlan
from rigl_compress.models.topology import Topology

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
        return {"format": 1, **asdict(self)}


def make_report(
    model: nn.Module, topology: Topology, small: nn.Module, left: Topology, plan: PrunePlan, example: Any
) -> PruneReport:
    """Measure both networks."""
    difference, largest = _compare(model, small, example)
    return PruneReport(
        architecture=f"{_architecture(model)} → {_architecture(small)}",
        before=_size(model, topology, example),
        after=_size(small, left, example),
        difference=difference,
        relative_difference=difference / largest if largest else difference,
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
    widths = [_outputs(layer) for layer in layers]
    if len(layers) > FEW_LAYERS or not layers:
        return f"{sum(widths):,} units in {len(layers)} layers"
    return "-".join(map(str, [_inputs(layers[0]), *widths[:-1]]))


def _inputs(layer: Any) -> int:
    return int(
        next(getattr(layer, name) for name in ("in_features", "in_channels", "input_size") if hasattr(layer, name))
    )


def _outputs(layer: Any) -> int:
    names = ("out_features", "out_channels", "hidden_size")
    return int(next(getattr(layer, name) for name in names if hasattr(layer, name)))


@torch.no_grad()
def _compare(model: nn.Module, small: nn.Module, example: Any) -> tuple[float, float]:
    """Run both on the example and on random inputs of its shape: the largest difference, the largest output."""
    training = small.training
    model.eval()
    small.eval()
    difference = largest = 0.0
    for inputs in (_tuple(example), _random_like(_tuple(example))):
        for one, other in zip(_tensors(model(*inputs)), _tensors(small(*inputs)), strict=True):
            difference = max(difference, float((one - other).abs().max()))
            largest = max(largest, float(one.abs().max()))
    small.train(training)
    return difference, largest


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
    return [tensor for part in value for tensor in _tensors(part)]
