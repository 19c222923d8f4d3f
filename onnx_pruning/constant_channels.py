"""Channels whose values do not depend on the inputs: a row of zeros leaves the bias, and what becomes of it."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.ort_sessions import arrays_in, open_session
from rigl_compress.onnx_pruning.channel_walk import BINARY, POINTWISE, POOLS, ChannelWalk, Product
from rigl_compress.runtime.onnx_graph import attributes, has_input

Array = NDArray[Any]
Constants = dict[str, Array]  # by value: what each channel always is, NaN where it varies


def constant_channels(walk: ChannelWalk) -> Constants:
    """Return the constants of the channels of all values that are followed."""
    products = {each.node: each for each in walk.products}
    found: Constants = {}
    for place, node in enumerate(walk.graph.nodes):
        if node.output and node.output[0] in walk.classes.members:
            known = _product(walk, products[place]) if place in products else _passed(walk, place, found)
            found[node.output[0]] = np.where(np.isfinite(known), known, np.nan)
    return found


def _product(walk: ChannelWalk, product: Product) -> Array:
    node = walk.graph.nodes[product.node]
    weight = np.moveaxis(_array(walk, product.weight), product.rows, 0)
    bias = _array(walk, node.input[2]).reshape(-1) if has_input(node, 2) else np.zeros(len(weight))
    factor = attributes(node).get("beta", 1.0) if node.op_type == "Gemm" else 1.0
    return np.where(weight.reshape(len(weight), -1).any(1), np.nan, factor * bias)


def _array(walk: ChannelWalk, name: str) -> Array:
    found = walk.graph.constant(name)
    assert found is not None
    return found


def _passed(walk: ChannelWalk, place: int, known: Constants) -> Array:
    """Return the constants that an operator makes of those that it reads."""
    node = walk.graph.nodes[place]
    if place in walk.depthwise:
        return _depthwise(walk, node, known[node.input[0]])
    if node.op_type in (*POINTWISE, *BINARY, "BatchNormalization"):
        return _computed(walk, node, known)
    if node.op_type == "Concat":
        return np.concatenate([known[name] for name in node.input])
    values = known[node.input[0]]
    if node.op_type in POOLS:
        return values if _keeps_constants(node) else np.where(values == 0, 0.0, np.nan)
    return np.repeat(values, len(walk.classes.members[node.output[0]]) // len(values))


def _keeps_constants(node: onnx.NodeProto) -> bool:
    """Whether a pool returns what all of a channel is: not if it averages with zeros of the padding."""
    settings = attributes(node)
    return node.op_type != "AveragePool" or not (settings.get("count_include_pad", 0) or settings.get("ceil_mode", 0))


def is_padded(node: onnx.NodeProto) -> bool:
    """Whether a convolution reads zeros around the image."""
    settings = attributes(node)
    return any(settings.get("pads", ())) or settings.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID")


def _depthwise(walk: ChannelWalk, node: onnx.NodeProto, values: Array) -> Array:
    weight = _array(walk, node.input[1]).astype(np.float64).reshape(len(values), -1)
    bias = _array(walk, node.input[2]) if has_input(node, 2) else np.zeros(len(values))
    read = np.where(values == 0, 0.0, np.nan) if is_padded(node) else values
    return np.where(weight.any(1), read * weight.sum(1) + bias, bias)


def _computed(walk: ChannelWalk, node: onnx.NodeProto, known: Constants) -> Array:
    """Run an operator on the constants."""
    count = len(walk.classes.members[node.output[0]])
    axis = walk.classes.axes[node.output[0]]
    rank = max(walk.rank(name) for name in node.input if name in known)
    operands: dict[str, Array] = {}
    varies = np.zeros(count, dtype=bool)
    for name in dict.fromkeys(filter(None, node.input)):
        if name in known:
            varies |= np.isnan(known[name])
            shape = [count if each == axis else 1 for each in range(max(rank, axis + 1))]
            operands[name] = np.nan_to_num(known[name]).astype(np.float32).reshape(shape)
        else:
            operands[name] = _array(walk, name)
            if node.op_type in BINARY and operands[name].size not in (1, count):
                return np.full(count, np.nan)  # it differs along another axis
    if varies.all():
        return np.full(count, np.nan)
    found = _run(walk, node, operands).reshape(-1)
    return np.where(varies, np.nan, found) if len(found) == count else np.full(count, np.nan)


def _run(walk: ChannelWalk, node: onnx.NodeProto, operands: dict[str, Array]) -> Array:
    stored = [numpy_helper.from_array(np.ascontiguousarray(each), name) for name, each in operands.items()]
    output = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "constants", [], [output], stored)
    model = walk.graph.model
    found = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    return arrays_in(open_session(found).run(None, {}))[0]
