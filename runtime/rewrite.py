"""Replace layers by sparse operators where these are faster; the rest of a model is unchanged."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rigl_compress.exporters.bounded_tensors import check_model_sizes
from rigl_compress.exporters.light_model import LightModel, fill
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.protobuf_scan import hollow
from rigl_compress.exporters.restore import restored
from rigl_compress.exporters.sparsify import lift_constants
from rigl_compress.runtime.attention_fusion import fuse_attention
from rigl_compress.runtime.dense_neighbors import dense_neighbors
from rigl_compress.runtime.depthwise_fusion import fuse_depthwise
from rigl_compress.runtime.folded_gate import fold_gate
from rigl_compress.runtime.folded_selection import fold_selection
from rigl_compress.runtime.gate_layers import gate_layers
from rigl_compress.runtime.gru_matching import match_gru
from rigl_compress.runtime.kernel_library import OPERATORS_VERSION
from rigl_compress.runtime.kernels import ACTIVATIONS
from rigl_compress.runtime.layer_matching import (
    DEPTHWISE,
    Layer,
    Match,
    find_layers,
    match_conv,
    match_gemm,
    match_matmul,
    match_norm,
)
from rigl_compress.runtime.layer_norm_fusion import fuse_layer_norms
from rigl_compress.runtime.lstm_matching import match_lstm, match_rnn
from rigl_compress.runtime.onnx_graph import Array, Graph, outputs_of
from rigl_compress.runtime.other_forms import OTHERS, SPREAD, in_any_form, match_conv_transpose, match_einsum
from rigl_compress.runtime.packed_weights import pack_matrix
from rigl_compress.runtime.recurrent_weights import name_states
from rigl_compress.runtime.tiled_values import use_tiles

DOMAIN, DOMAIN_VERSION = "rigl_compress", OPERATORS_VERSION
_FORMS: dict[str, Match] = {
    **{"Conv": match_conv, "Gemm": match_gemm, "MatMul": match_matmul, "GRU": match_gru},
    **{"ConvTranspose": match_conv_transpose, "Einsum": match_einsum},
    **{"LSTM": match_lstm, "RNN": match_rnn},
    "BatchNormalization": match_norm,
}
MATCHERS = {name: in_any_form(match, *OTHERS.get(name, ())) for name, match in _FORMS.items()}
IsFaster = Callable[[Layer, Graph], bool]
Select = Callable[[Sequence[Layer], Sequence[Layer], Graph], Sequence[Layer]]


@dataclass(frozen=True)
class Rewritten:
    """A model with sparse operators, and the layers they replace."""

    model: onnx.ModelProto
    layers: tuple[Layer, ...]
    found: tuple[Layer, ...]  # all layers that sparse operators could replace
    graph: Graph  # of the model before


def rewrite(
    model: onnx.ModelProto | LightModel,
    is_faster: IsFaster,
    threads: int = 0,
    select: Select = lambda chosen, *_: chosen,
) -> Rewritten:
    """Return a copy in which each faster layer is one sparse operator. Weights may have any encoding of this package.

    `select` makes the final choice: given the faster layers and all layers, it returns those to replace.
    """
    plain, graph = indexed(model)
    found, layers = choose(graph, is_faster, select)
    replaced = (*layers, *dense_neighbors(found, layers))
    nodes = {layer.output: _nodes(layer, graph, is_faster, threads) for layer in replaced}
    _replace(plain, nodes, replaced)
    fuse_layer_norms(plain, graph, layers, threads)
    fuse_depthwise(plain, graph, layers)
    fuse_attention(plain, graph, layers, threads)
    for layer in replaced:
        plain.graph.initializer.extend(_tensors(layer))
        if layer.projection is not None:
            plain.graph.initializer.extend([*_tensors(layer.projection), _dense(layer.projection)])
    known = {value.name for value in plain.graph.value_info}
    plain.graph.value_info.extend(value for value in graph.model.graph.value_info if value.name not in known)
    _drop_unused(plain.graph)
    use_tiles(plain.graph)
    plain.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    if layers:
        fill(plain, graph.weights)
    return Rewritten(plain, layers, found, graph)


def choose(graph: Graph, is_faster: IsFaster, select: Select) -> tuple[tuple[Layer, ...], tuple[Layer, ...]]:
    """Return all layers that sparse operators could replace, and those that they do."""
    found = [fold_gate(graph, fold_selection(graph, layer)) for layer in find_layers(graph, MATCHERS)]
    faster = [layer for layer in found if layer.operator != DEPTHWISE and is_faster(layer, graph)]
    selected = list(select(faster, found, graph))
    return tuple(found), tuple(selected + gate_layers(found, selected, graph))


def indexed(source: onnx.ModelProto | LightModel) -> tuple[onnx.ModelProto, Graph]:
    """Return a copy of a model without encodings, its large weights left out, and its graph with known shapes."""
    if isinstance(source, onnx.ModelProto):
        check_model_sizes(source)
        source = LightModel(source)
    plain, arrays = restored(source.model)
    lift_constants(plain)
    name_states(plain)
    plain.graph.initializer.extend(_hollow(name, array) for name, array in arrays.items())
    return plain, Graph(onnx.shape_inference.infer_shapes(plain), {**arrays} if arrays else source.weights)


def _hollow(name: str, array: Array) -> onnx.TensorProto:
    return hollow(onnx.TensorProto(name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype)))


def sparse_outputs(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the first output of each sparse operator: empty for a model that was not rewritten."""
    sparse = (each for each in model.graph.node if each.domain == DOMAIN and each.op_type.startswith("Sparse"))
    return tuple(next(iter(node.output), "") for node in sparse)


def _nodes(layer: Layer, graph: Graph, is_faster: IsFaster, threads: int) -> list[onnx.NodeProto]:
    """Return the nodes of a layer: one, and for a recurrent layer also the product of its inputs, sparse if faster."""
    node = _node(layer, threads)
    if layer.projection is None:
        return [*layer.before, node, *_after(layer, threads)]
    given = [*layer.nodes[0].output, "", ""]
    kinds = ("last", "cell") if layer.operator == "SparseLSTM" else ("last",)
    node.output.extend(given[place] or f"{layer.output}/{kind}" for place, kind in enumerate(kinds, 1))
    if is_faster(layer.projection, graph):
        return [_node(layer.projection, threads), node]
    name = layer.projection.output
    multiply = helper.make_node("MatMul", [layer.projection.x, f"{name}/dense"], [f"{name}/product"])
    return [multiply, helper.make_node("Add", [f"{name}/product", f"{name}/bias"], [name]), node]


def _after(layer: Layer, threads: int) -> list[onnx.NodeProto]:
    """Return the nodes that compute the output of a layer from that of its sparse operator."""
    ours: dict[str, Any] = {"domain": DOMAIN, "threads": threads}
    names = [f"{layer.output}/{step}" for step in range(len(layer.after))] + [layer.output]
    return [
        helper.make_node(kind, [names[step]], [names[step + 1]], **settings, **(ours if kind == SPREAD else {}))
        for step, (kind, settings) in enumerate(layer.after)
    ]


def _dense(layer: Layer) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(layer.matrix.T), f"{layer.output}/dense")


def _node(layer: Layer, threads: int) -> onnx.NodeProto:
    bias = "" if layer.bias is None else f"{layer.output}/bias"
    inputs = [layer.x, f"{layer.output}/packed", bias, layer.residual, layer.lengths or layer.gate, layer.cell]
    while not inputs[-1]:
        inputs.pop()
    low, high = layer.limits
    settings: dict[str, Any] = {**layer.settings, "threads": threads}
    if layer.activation:
        settings["activation"] = ACTIVATIONS.index(layer.activation)
    settings |= {name: value for name, value in {"low": low, "high": high}.items() if np.isfinite(value)}
    output = f"{layer.output}/0" if layer.after else layer.output
    return helper.make_node(layer.operator, inputs, [output], layer.output, domain=DOMAIN, **settings)


def _tensors(layer: Layer) -> list[onnx.TensorProto]:
    dense = layer.operator == DEPTHWISE
    array = np.ascontiguousarray(layer.matrix) if dense else pack_matrix(layer.matrix, layer.scales)
    packed = numpy_helper.from_array(array, f"{layer.output}/packed")
    if layer.bias is None:
        return [packed]
    return [packed, numpy_helper.from_array(np.ascontiguousarray(layer.bias), f"{layer.output}/bias")]


def _replace(model: onnx.ModelProto, new: Mapping[str, list[onnx.NodeProto]], layers: Sequence[Layer]) -> None:
    """Insert new nodes where the last of the replaced nodes was: all their inputs are computed by then."""
    removed = {name for layer in layers for node in layer.nodes for name in node.output if name}
    kept: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.output and node.output[0] in new:
            kept.extend(new[node.output[0]])
        elif not removed & set(node.output):
            kept.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del model.graph.node[:]
    model.graph.node.extend(copies)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Remove nodes and constants without consumers: selections that are folded into sparse layers."""
    used = set(outputs_of(graph))
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
