"""What a layer costs at a density: predicted time, bytes in the file, FLOPs."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from rigl_compress.exporters.execution_trace import executed_nodes
from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.runtime.cost_model import Work, layer_time, work_of
from rigl_compress.runtime.layer_matching import Layer, find_layers
from rigl_compress.runtime.onnx_graph import Graph
from rigl_compress.runtime.rewrite import MATCHERS
from rigl_compress.sparsity.budgets import Cost, byte_cost

Array = NDArray[Any]


def byte_costs(layers: Sequence[PrunableLayer]) -> dict[str, Cost]:
    """Return the bytes of weights in the smallest of the encodings; about, as gaps over 255 take more."""
    return {each.name: byte_cost(each.size) for each in layers}


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
    graph = Graph(_as_executed(onnx.shape_inference.infer_shapes(_with_shapes(model, sample)), sample))
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


def _as_executed(model: onnx.ModelProto, sample: Mapping[str, Array]) -> onnx.ModelProto:
    """Set the shapes that inference left open, behind a Reshape for instance, to those of a run; in place."""
    shapes = {name: shape for each in executed_nodes(model, dict(sample)) for name, shape in each.shapes.items()}
    named = {each.name for each in (*model.graph.input, *model.graph.output)}
    known = [each for each in model.graph.value_info if each.name not in shapes]
    del model.graph.value_info[:]
    model.graph.value_info.extend(known)
    for name, shape in shapes.items():
        if name not in named:
            model.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    return model


def _time(works: Sequence[Work]) -> Cost:
    return lambda density: sum(layer_time(work, density) for work in works)
