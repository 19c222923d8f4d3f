"""Layer normalizations next to sparse layers, each fused with the residual sum before it."""

from collections.abc import Iterable, Iterator

import onnx
from onnx import helper

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, float_constant, has_input, is_standard

OPERATOR = "AddLayerNorm"


def fuse_layer_norms(model: onnx.ModelProto, graph: Graph, layers: Iterable[Layer], threads: int) -> None:
    """Replace layer normalizations that read from or write to a sparse product, and the sums they normalize.

    The graph is that before the layers were replaced.
    """
    near = _neighborhood(graph, layers)
    remaining = {node.output[0]: node for node in model.graph.node if node.output}
    added, removed = {}, set()
    for node in graph.nodes:
        if not is_standard(node, "LayerNormalization") or node.output[0] not in remaining:
            continue
        if near & {node.input[0], node.output[0]} and _can_fuse(graph, node):
            total = _sum(graph, node, remaining)
            added[(total or node).output[0]] = _node(graph, node, total, threads)
            removed.add(node.output[0])
    if added:
        _swap(model, added, removed)


def _neighborhood(graph: Graph, layers: Iterable[Layer]) -> set[str]:
    """Return the inputs and outputs of sparse products, and the sums of their outputs."""
    products = [layer for layer in layers if layer.operator == "SparseMatMul"]
    outputs = {layer.output for layer in products}
    sums = {user.output[0] for name in outputs for user in graph.consumers.get(name, ()) if is_standard(user, "Add")}
    return {*(layer.x for layer in products), *outputs, *sums}


def _can_fuse(graph: Graph, node: onnx.NodeProto) -> bool:
    """Check for constant parameters of the last axis, and for one output."""
    given, shape = attributes(node), graph.shape(node.input[0])
    axis = given.get("axis", -1)
    if shape is None or axis not in (-1, len(shape) - 1) or given.get("stash_type", 1) != 1:
        return False
    parameters = [float_constant(graph, name, 1) for name in node.input[1:] if name]
    fits = all(each is not None and each.shape == (shape[-1],) for each in parameters)
    return fits and has_input(node, 1) and not any(node.output[1:])


def _sum(graph: Graph, node: onnx.NodeProto, remaining: dict[str, onnx.NodeProto]) -> onnx.NodeProto | None:
    """Return the Add before a normalization, if it adds two values of the same rank and last axis."""
    total = graph.producers.get(node.input[0])
    if total is None or not is_standard(total, "Add") or total.output[0] not in remaining:
        return None
    one, other = (graph.shape(name) or () for name in total.input)
    fits = len(one) == len(other) > 0 and isinstance(one[-1], int) and one[-1] == other[-1]
    return total if fits and is_standard(remaining[total.output[0]], "Add") else None


def _node(graph: Graph, node: onnx.NodeProto, total: onnx.NodeProto | None, threads: int) -> onnx.NodeProto:
    bias = node.input[2] if has_input(node, 2) else ""
    x, *residual = [node.input[0]] if total is None else total.input
    shared = total is not None and (graph.only_consumer(node.input[0]) is None)
    inputs = [x, node.input[1], bias, *residual]
    while not inputs[-1]:
        inputs.pop()
    outputs = [node.output[0], *([node.input[0]] if shared else [])]
    settings = {"epsilon": attributes(node).get("epsilon", 1e-5), "with_sum": int(shared), "threads": threads}
    return helper.make_node(OPERATOR, inputs, outputs, node.output[0], domain="rigl_compress", **settings)


def _swap(model: onnx.ModelProto, added: dict[str, onnx.NodeProto], removed: set[str]) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in _swapped(model, added, removed)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _swapped(model: onnx.ModelProto, added: dict[str, onnx.NodeProto], removed: set[str]) -> Iterator[onnx.NodeProto]:
    """Yield all nodes, new ones where the first of the replaced nodes was: their sum may be used before the norm."""
    for node in model.graph.node:
        name = node.output[0] if node.output else ""
        if name in added:
            yield added[name]
        elif name not in removed:
            yield node
