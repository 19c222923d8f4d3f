"""Put sparse operators in the place of layers that gain from them; the rest of a model stays as it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import lift_constants
from rigl_compress.runtime.dense import dense_neighbours
from rigl_compress.runtime.graph import Graph
from rigl_compress.runtime.layers import DEPTHWISE, Layer, find_layers, match_conv, match_gemm, match_matmul, match_norm
from rigl_compress.runtime.library import OPERATORS_VERSION
from rigl_compress.runtime.packed import pack_matrix
from rigl_compress.runtime.recurrent import match_gru, name_states
from rigl_compress.runtime.selection import read_directly

DOMAIN, DOMAIN_VERSION = "rigl_compress", OPERATORS_VERSION
RECOGNIZED = {
    **{"Conv": match_conv, "Gemm": match_gemm, "MatMul": match_matmul, "GRU": match_gru},
    "BatchNormalization": match_norm,
}
Gains = Callable[[Layer, Graph], bool]
Together = Callable[[Sequence[Layer], Sequence[Layer], Graph], Sequence[Layer]]


@dataclass(frozen=True)
class Rewritten:
    """A model with sparse operators, and the layers that they stand for."""

    model: onnx.ModelProto
    layers: tuple[Layer, ...]


def rewrite(
    model: onnx.ModelProto, gains: Gains, threads: int = 0, together: Together = lambda chosen, *_: chosen
) -> Rewritten:
    """Give a copy in which each layer that gains is one sparse operator. Weights may be encoded in any way of ours.

    `together` has the last word: given the layers that gain and all that were found, it gives those to take.
    """
    plain = restore(model)
    lift_constants(plain)
    name_states(plain)
    graph = Graph(onnx.shape_inference.infer_shapes(plain))
    found = [read_directly(graph, layer) for layer in find_layers(graph, RECOGNIZED)]
    gaining = [layer for layer in found if layer.operator != DEPTHWISE and gains(layer, graph)]
    layers = tuple(together(gaining, found, graph))
    replaced = (*layers, *dense_neighbours(found, layers))
    by_column = _by_column(layers, graph)
    _replace(plain, {layer.output: _nodes(layer, graph, gains, (by_column, threads)) for layer in replaced}, replaced)
    for layer in replaced:
        plain.graph.initializer.extend(_tensors(layer))
        if layer.projection is not None:
            plain.graph.initializer.extend([*_tensors(layer.projection), _dense(layer.projection)])
    known = {value.name for value in plain.graph.value_info}
    plain.graph.value_info.extend(value for value in graph.model.graph.value_info if value.name not in known)
    _drop_unused(plain.graph)
    plain.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    return Rewritten(plain, layers)


def sparse_outputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Give the first output of each of our operators: none of a model that was not rewritten for them."""
    return tuple(node.output[0] for node in model.graph.node if node.domain == DOMAIN and node.op_type != DEPTHWISE)


def _nodes(layer: Layer, graph: Graph, gains: Gains, settings: tuple[set[str], int]) -> list[onnx.NodeProto]:
    """Give the operators of a layer: one, and for a recurrent one what multiplies its inputs, sparse if that gains."""
    node = _node(layer, *settings)
    if layer.projection is None:
        return [*layer.before, node]
    gru = layer.nodes[0]
    node.output.append(gru.output[1] if len(gru.output) > 1 and gru.output[1] else f"{layer.output}/last")
    if gains(layer.projection, graph):
        return [_node(layer.projection, *settings), node]
    name = layer.projection.output
    multiply = helper.make_node("MatMul", [layer.projection.x, f"{name}/dense"], [f"{name}/product"])
    return [multiply, helper.make_node("Add", [f"{name}/product", f"{name}/bias"], [name]), node]


def _dense(layer: Layer) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(layer.matrix.T), f"{layer.output}/dense")


def _node(layer: Layer, by_column: set[str], threads: int) -> onnx.NodeProto:
    bias = "" if layer.bias is None else f"{layer.output}/bias"
    inputs = [layer.x, f"{layer.output}/packed", bias, layer.residual, layer.lengths]
    while not inputs[-1]:
        inputs.pop()
    low, high = layer.limits
    settings: dict[str, Any] = {**layer.settings, "threads": threads}
    settings |= {name: value for name, value in {"low": low, "high": high}.items() if np.isfinite(value)}
    if layer.operator == "SparseMatMul":
        settings |= {"x_by_column": int(layer.x in by_column), "y_by_column": int(layer.output in by_column)}
    return helper.make_node(layer.operator, inputs, [layer.output], layer.output, domain=DOMAIN, **settings)


def _tensors(layer: Layer) -> list[onnx.TensorProto]:
    packs = np.ascontiguousarray if layer.operator == DEPTHWISE else pack_matrix
    packed = numpy_helper.from_array(packs(layer.matrix), f"{layer.output}/packed")
    if layer.bias is None:
        return [packed]
    return [packed, numpy_helper.from_array(np.ascontiguousarray(layer.bias), f"{layer.output}/bias")]


def _by_column(layers: Sequence[Layer], graph: Graph) -> set[str]:
    """Find the values between sparse products alone: they may lie feature by feature, as the kernels want them."""
    products = {layer.output for layer in layers if layer.operator == "SparseMatMul"}
    first = {layer.nodes[0].output[0]: layer.x for layer in layers if layer.operator == "SparseMatMul"}
    return {
        name
        for name in products - graph.outputs
        if graph.consumers.get(name) and all(first.get(user.output[0]) == name for user in graph.consumers[name])
    }


def _replace(model: onnx.ModelProto, new: Mapping[str, list[onnx.NodeProto]], layers: Sequence[Layer]) -> None:
    """Put new operators where the last of those stood whose place they take: all of their inputs are made by then."""
    gone = {name for layer in layers for node in layer.nodes for name in node.output if name}
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.output and node.output[0] in new:
            kept.extend(new[node.output[0]])
        elif not gone & set(node.output):
            kept.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Drop operators and constants that nothing uses any more: selections that sparse layers make themselves."""
    used = set(Graph(onnx.ModelProto(graph=graph)).outputs)
    kept = []
    for node in reversed(graph.node):
        if used & set(node.output):
            used.update(node.input)
            kept.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del graph.node[:]
    graph.node.extend(nodes)
    inputs = {value.name for value in graph.input}
    delete(graph.initializer, lambda tensor: tensor.name not in used | inputs)
