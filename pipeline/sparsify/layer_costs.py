"""What a layer costs at a density: predicted time, bytes in the file, FLOPs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.pipeline.bench.conditions import UNITS
from rigl_compress.pipeline.sparsify.prunable_layers import PrunableLayer
from rigl_compress.runtime.cost_model import MARGIN, Work, expected_speedup, work_of
from rigl_compress.runtime.cost_tables import coefficients
from rigl_compress.runtime.layer_matching import Layer, find_layers
from rigl_compress.runtime.onnx_graph import Graph
from rigl_compress.runtime.rewrite import MATCHERS

Array = NDArray[Any]
Cost = Callable[[float], float]  # of a density
TIMES = ("speedup", "latency")
KINDS = (*TIMES, "size", "flops")
_GAP, _VALUE = 1, 4  # bytes


@dataclass(frozen=True)
class Budget:
    """A wish: so many times faster, or at most so many seconds, bytes or FLOPs."""

    kind: str
    value: float

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.kind}={self.value:g}"


def parse_budget(text: str) -> Budget:
    """Read a budget.

    >>> parse_budget("speedup=2"), parse_budget("latency=8ms").value, parse_budget("size=4MB").value
    (Budget(kind='speedup', value=2.0), 0.008, 4000000.0)
    """
    kind, _, amount = (part.strip() for part in text.partition("="))
    if kind not in KINDS:
        raise InputError(f"budget {text!r} is of no known kind: {did_you_mean(kind, KINDS)}")
    number = amount.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZµ")
    unit = amount[len(number) :]
    try:
        value = float(number) * UNITS["" if unit == "x" else unit]
    except (ValueError, KeyError):
        raise InputError(f"budget {text!r} has no number: write e.g. speedup=2, latency=8ms, size=4MB") from None
    if not 0 < value < float("inf"):
        raise InputError(f"budget {text!r} is not above 0")
    return Budget(kind, value)


def byte_costs(layers: Sequence[PrunableLayer]) -> dict[str, Cost]:
    """Return the bytes of weights in the smallest of the encodings; about, as gaps over 255 take more."""
    return {each.name: _bytes(each.size) for each in layers}


def _bytes(size: int) -> Cost:
    def cost(density: float) -> float:
        count = density * size
        return min(_VALUE * size, _VALUE * count + size / 8, (_VALUE + _GAP) * count)

    return cost


def flop_costs(
    model: onnx.ModelProto, layers: Sequence[PrunableLayer], sample: Mapping[str, Array]
) -> tuple[dict[str, Cost], float]:
    """Return the FLOPs of layers, and those of all that is not pruned."""
    costs = graph_costs(model, dict(sample))
    named = {each.name for each in layers}
    own: dict[str, float] = {}
    for row in costs.layers:
        if row.weight in named:
            own[row.weight] = own.get(row.weight, 0.0) + row.dense_flops
    rest = costs.dense_flops - sum(own.values())

    def linear(whole: float) -> Cost:
        return lambda density: density * whole

    return {each.name: linear(own.get(each.name, 0.0)) for each in layers}, rest


def time_costs(model: onnx.ModelProto, layers: Sequence[PrunableLayer], sample: Mapping[str, Array]) -> dict[str, Cost]:
    """Return the predicted nanoseconds of layers, as the session runs them: sparse if that is faster by a margin."""
    graph = Graph(onnx.shape_inference.infer_shapes(_with_shapes(model, sample)))
    found: dict[str, list[Work]] = {}
    for layer in find_layers(graph, MATCHERS):
        if layer.operator in ("SparseConv", "SparseMatMul"):
            found.setdefault(_weight(layer), []).append(work_of(layer, graph))
    return {each.name: _time(found.get(each.name, [])) for each in layers}


def _weight(layer: Layer) -> str:
    return str(layer.nodes[0].input[1])


def _with_shapes(model: onnx.ModelProto, sample: Mapping[str, Array]) -> onnx.ModelProto:
    """Return a copy whose inputs have the shapes of a sample: the work of a layer depends on them."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    for value in found.graph.input:
        if value.name in sample:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for length in sample[value.name].shape:
                shape.dim.add().dim_value = length
    for value in found.graph.output:
        value.type.tensor_type.ClearField("shape")
    del found.graph.value_info[:]
    return found


def _time(works: Sequence[Work]) -> Cost:
    return lambda density: sum(_layer_time(work, density) for work in works)


def _layer_time(work: Work, density: float) -> float:
    costs = coefficients()[work.family]["dense"]
    dense = sum(costs[name] * amount for name, amount in work.dense().items())
    speedup = expected_speedup(replace(work, nonzeros=max(1, round(density * work.weights))))
    return dense / speedup if speedup > 1 / (1 - MARGIN) else dense
