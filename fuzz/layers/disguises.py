"""The same layers in other forms: weights behind other operators, of another rank, or in another operator.

A disguise is drawn for each layer of a graph. Both runtimes get the disguised graph, so that values may change, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]


class _Graph:
    """A graph in the making: nodes that replace one, and constants."""

    def __init__(self, model: ModelProto) -> None:
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.nodes: list[NodeProto] = []

    def constant(self, array: Array) -> str:
        name = f"d{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(array)
        return name

    def add(self, kind: str, *inputs: str, **settings: Any) -> str:
        name = f"u{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **settings))
        return name

    def again(self, node: NodeProto, place: int, name: str) -> None:
        """Add a node with another input."""
        self.nodes.append(node)
        self.nodes[-1].input[place] = name


def disguised(model: ModelProto, seed: int) -> ModelProto:
    """Return a model with a random disguise for each of its layers."""
    rng, graph = np.random.default_rng(seed), _Graph(model)
    for node in model.graph.node:
        weight = graph.constants.get(node.input[1]) if node.op_type in ("Conv", "Gemm", "MatMul") else None
        known = [*_ANY, *_OF.get(node.op_type, [])] if weight is not None and weight.size else []
        count = len(graph.nodes)
        if not known or rng.random() < 0.3 or not known[rng.integers(len(known))](graph, node, weight):
            del graph.nodes[count:]
            graph.nodes.append(node)
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.initializer[:]
    copy.graph.node.extend(graph.nodes)
    copy.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in graph.constants.items())
    return copy


def _transposed(graph: _Graph, node: NodeProto, weight: Array) -> bool:
    order = [*range(1, weight.ndim), 0]
    name = graph.add("Transpose", graph.constant(weight.transpose(order)), perm=np.argsort(order).tolist())
    graph.again(node, 1, name)
    return True


def _reshaped(graph: _Graph, node: NodeProto, weight: Array) -> bool:
    shape = graph.constant(np.array(weight.shape, np.int64))
    graph.again(node, 1, graph.add("Reshape", graph.constant(weight.reshape(-1)), shape))
    return True


def _halved(graph: _Graph, node: NodeProto, weight: Array) -> bool:
    graph.again(node, 1, graph.add("Cast", graph.constant(weight.astype(np.float16)), to=TensorProto.FLOAT))
    return True


def _quantized(graph: _Graph, node: NodeProto, weight: Array) -> bool:
    scales = (np.abs(weight).reshape(len(weight), -1).max(axis=1) / 127 + 1e-6).astype(np.float32)
    shape = (-1, *[1] * (weight.ndim - 1))
    values = graph.constant(np.round(weight / scales.reshape(shape)).astype(np.int8))
    zeros = graph.constant(np.zeros(len(weight), np.int8))
    graph.again(node, 1, graph.add("DequantizeLinear", values, graph.constant(scales), zeros, axis=0))
    return True


def _turned(graph: _Graph, node: NodeProto, weight: Array) -> bool:
    """A convolution of stride 1 as a transposed one."""
    settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    axes = weight.ndim - 2
    steps, pads = settings.get("dilations", [1] * axes), settings.get("pads", [0] * 2 * axes)
    if axes != 2 or settings.get("group", 1) != 1 or any(stride != 1 for stride in settings.get("strides", [])):
        return False
    reach = [(size - 1) * step for size, step in zip(weight.shape[2:], steps, strict=True)] * 2
    if any(pad > far for pad, far in zip(pads, reach, strict=True)):
        return False
    turned = graph.constant(weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3))
    pads = [far - pad for far, pad in zip(reach, pads, strict=True)]
    inputs = [node.input[0], turned, *node.input[2:]]
    graph.nodes.append(helper.make_node("ConvTranspose", inputs, [*node.output], dilations=steps, pads=pads))
    return True


def _padded_by_name(graph: _Graph, node: NodeProto, _weight: Array) -> bool:
    """Without padding, by its name."""
    settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if any(settings.pop("pads", [])):
        return False
    graph.nodes.append(helper.make_node("Conv", [*node.input], [*node.output], auto_pad="VALID", **settings))
    return True


def _with_transposed_input(graph: _Graph, node: NodeProto, _weight: Array) -> bool:
    settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    x = graph.add("Transpose", node.input[0], perm=[1, 0])
    settings |= {"transA": 1}
    graph.nodes.append(helper.make_node("Gemm", [x, *node.input[1:]], [*node.output], **settings))
    return True


def _as_einsum(graph: _Graph, node: NodeProto, _weight: Array) -> bool:
    settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type == "Gemm" and (len(node.input) > 2 or settings != {"transB": 1}):
        return False
    if node.op_type == "MatMul":  # of rank 2 or 3: not known here
        return False
    graph.nodes.append(helper.make_node("Einsum", [*node.input], [*node.output], equation="bk,nk->bn"))
    return True


def _on_the_left(graph: _Graph, node: NodeProto, _weight: Array) -> bool:
    settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    if node.op_type != "Gemm" or len(node.input) > 2 or settings != {"transB": 1}:
        return False
    product = graph.add("MatMul", node.input[1], graph.add("Transpose", node.input[0], perm=[1, 0]))
    graph.nodes.append(helper.make_node("Transpose", [product], [*node.output], perm=[1, 0]))
    return True


_Disguise = Callable[[_Graph, NodeProto, Array], bool]
_ANY: list[_Disguise] = [_transposed, _reshaped, _halved, _quantized]
_OF: dict[str, list[_Disguise]] = {
    "Conv": [_turned, _padded_by_name],
    "Gemm": [_with_transposed_input, _as_einsum, _on_the_left],
}
