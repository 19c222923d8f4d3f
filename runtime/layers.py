"""Layers that could run on sparse kernels: an operator with constant weights, and what can be fused with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.runtime.graph import Graph, attributes, floats, has, is_standard, same_shape
from rigl_compress.runtime.packed import conv_matrix

Array = NDArray[Any]
Limits = tuple[float, float]
NO_LIMITS: Limits = (-np.inf, np.inf)
LARGEST = 65536  # kernel, stride, dilation or padding of a convolution, as in native/conv.cpp
LARGEST_MATRIX = 2**25  # numbers of a grouped convolution, laid out over the inputs of all groups
DEPTHWISE = "DepthwiseConv"  # dense, and here only to keep the layout of its sparse neighbours


@dataclass(frozen=True, eq=False)
class Layer:
    """Operators of the graph that one sparse operator can take the place of."""

    operator: str
    nodes: tuple[onnx.NodeProto, ...]
    x: str
    matrix: Array  # [outputs, inputs]; for a grouped convolution, over the inputs of all groups; or [channels, taps]
    weights: int  # in the dense operator
    bias: Array | None = None
    residual: str = ""
    limits: Limits = NO_LIMITS
    settings: Mapping[str, list[int]] = field(default_factory=dict)
    projection: "Layer | None" = None  # of the inputs of a recurrent layer, whose residual is the first state
    name: str = ""  # of a projection's output
    lengths: str = ""  # of the samples of a recurrent layer
    picked: int = 0  # inputs that a Gather would copy one by one if the layer stayed dense
    before: tuple[onnx.NodeProto, ...] = ()  # operators that make its input of what is there

    @property
    def output(self) -> str:
        """The value that the layer gives."""
        return str(self.nodes[-1].output[0]) if self.nodes else self.name


Match = Callable[[Graph, onnx.NodeProto], Layer | None]


def find_layers(graph: Graph, recognized: Mapping[str, Match]) -> list[Layer]:
    """Find all layers with weights that could be sparse, each with what follows it; no operator is in two of them."""
    found: list[Layer] = []
    taken: set[str] = set()
    for node in graph.nodes:
        recognize = recognized.get(node.op_type) if is_standard(node, node.op_type) else None
        layer = recognize(graph, node) if recognize else None
        if layer is None or node.output[0] in taken:
            continue
        layer = _fused(graph, layer, taken) if layer.projection is None else layer
        taken.update(name for each in layer.nodes for name in each.output)
        found.append(layer)
    return found


def match_conv(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Recognize a convolution with constant weights of 32 bits."""
    weight, settings = floats(graph, node.input[1], 3, 4), attributes(node)
    bias = floats(graph, node.input[2], 1) if has(node, 2) else None
    if weight is None or (has(node, 2) and bias is None) or settings.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    axes = weight.ndim - 2
    kept = {
        "kernel_shape": list(weight.shape[2:]),
        "strides": list(settings.get("strides", [1] * axes)),
        "pads": list(settings.get("pads", [0] * 2 * axes)),
        "dilations": list(settings.get("dilations", [1] * axes)),
    }
    groups = settings.get("group", 1)
    declared = settings.get("kernel_shape", kept["kernel_shape"])
    if declared != kept["kernel_shape"] or not _can_run(kept) or groups < 1 or len(weight) % groups:
        return None
    if bias is not None and len(bias) != len(weight):
        return None
    if _by_channel(weight, groups, kept):
        return Layer(DEPTHWISE, (node,), node.input[0], weight.reshape(groups, -1), weight.size, bias, settings=kept)
    if groups > 1 and weight.size * groups > LARGEST_MATRIX:
        return None
    matrix = conv_matrix(weight, groups)
    return Layer("SparseConv", (node,), node.input[0], matrix, weight.size, bias, settings=kept)


def _can_run(settings: Mapping[str, list[int]]) -> bool:
    """Tell whether the kernels take a window; what they do not take is left to ONNX Runtime, to run or to refuse."""
    axes = len(settings["kernel_shape"])
    lowest = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0}
    lengths = {**dict.fromkeys(lowest, axes), "pads": 2 * axes}
    return all(
        len(settings[name]) == lengths[name] and all(low <= value <= LARGEST for value in settings[name])
        for name, low in lowest.items()
    )


def _by_channel(weight: Array, groups: int, settings: Mapping[str, list[int]]) -> bool:
    """Tell whether each channel of an image has one filter of its own, padded no farther than it reaches."""
    return groups > 1 and weight.ndim == 4 and weight.shape[:2] == (groups, 1) and _within_reach(settings)


def _within_reach(settings: Mapping[str, list[int]]) -> bool:
    """Tell whether a window is padded no farther than it reaches."""
    reach = [(size - 1) * step for size, step in zip(settings["kernel_shape"], settings["dilations"], strict=True)]
    return all(0 <= pad <= far for pad, far in zip(settings["pads"], reach * 2, strict=True))


def match_gemm(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Recognize a product with a bias with constant weights of 32 bits."""
    weight, settings = floats(graph, node.input[1], 2), attributes(node)
    # Sparse products take inputs of any rank; a Gemm that is given others than of two must refuse them.
    if weight is None or settings.get("transA", 0) or len(graph.shape(node.input[0]) or ()) != 2:
        return None
    matrix = (weight if settings.get("transB", 0) else weight.T) * np.float32(settings.get("alpha", 1.0))
    if not has(node, 2):
        return Layer("SparseMatMul", (node,), node.input[0], matrix, weight.size)
    added = graph.constant(node.input[2])
    bias = _as_bias(added, len(matrix))
    if added is None or added.ndim > 2 or bias is None:
        return None
    return Layer(
        "SparseMatMul", (node,), node.input[0], matrix, weight.size, bias * np.float32(settings.get("beta", 1))
    )


def match_matmul(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Recognize a product with constant weights of 32 bits."""
    weight = floats(graph, node.input[1], 2)
    return None if weight is None else Layer("SparseMatMul", (node,), node.input[0], weight.T, weight.size)


def _as_bias(array: Array | None, outputs: int) -> Array | None:
    """Give a constant as one number for each output, if it is added along the last axis."""
    if array is None or array.dtype != np.float32:
        return None
    along_the_last = array.size == outputs and array.shape[-1:] == (outputs,)
    return np.broadcast_to(array.reshape(-1), (outputs,)) if along_the_last or array.size == 1 else None


def _fused(graph: Graph, layer: Layer, taken: set[str]) -> Layer:
    """Take in the operators that follow, as far as the kernels can do their work."""
    for step in (_with_norm, _with_bias, _with_residual, _with_limits):
        follower = graph.only_consumer(layer.output)
        if follower is not None and follower.output[0] not in taken:
            layer = step(graph, layer, follower)
    return layer


def match_norm(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Recognize normalisation of images by fixed statistics: a filter of one place for each channel."""
    normed = _normed(graph, node)
    if normed is None or len(graph.shape(node.input[0]) or ()) != 4:
        return None
    factor, shift = normed
    settings = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1]}
    matrix, bias = factor[:, None].astype(np.float32), shift.astype(np.float32)
    return Layer(DEPTHWISE, (node,), node.input[0], matrix, factor.size, bias, settings=settings)


def _normed(graph: Graph, node: onnx.NodeProto) -> tuple[Array, Array] | None:
    """Give what normalisation multiplies each channel with, and what it then adds."""
    settings = attributes(node)
    parts = [part for name in node.input[1:] if (part := floats(graph, name, 1)) is not None]
    if settings.get("training_mode", 0) or len(parts) != 4 or len(node.output) != 1:
        return None
    if len({part.shape for part in parts}) != 1:
        return None
    scale, shift, mean, variance = (part.astype(np.float64) for part in parts)
    factor = scale / np.sqrt(variance + settings.get("epsilon", 1e-5))
    return factor, shift - mean * factor


def _with_norm(graph: Graph, layer: Layer, follower: onnx.NodeProto) -> Layer:
    if layer.operator not in ("SparseConv", DEPTHWISE) or not is_standard(follower, "BatchNormalization"):
        return layer
    normed = _normed(graph, follower)
    if normed is None or len(normed[0]) != len(layer.matrix):
        return layer
    factor, shift = normed
    bias = shift if layer.bias is None else shift + layer.bias * factor
    matrix = (layer.matrix * factor[:, None]).astype(np.float32)
    return replace(layer, nodes=(*layer.nodes, follower), matrix=matrix, bias=bias.astype(np.float32))


def _with_bias(graph: Graph, layer: Layer, follower: onnx.NodeProto) -> Layer:
    if layer.operator != "SparseMatMul" or layer.bias is not None or not is_standard(follower, "Add"):
        return layer
    bias = _as_bias(graph.constant(_other(follower, layer.output)), len(layer.matrix))
    # A constant of more axes than the product would give it more axes too.
    if bias is None or not same_shape(graph.shape(layer.output), graph.shape(follower.output[0])):
        return layer
    return replace(layer, nodes=(*layer.nodes, follower), bias=bias)


def _with_residual(graph: Graph, layer: Layer, follower: onnx.NodeProto) -> Layer:
    if layer.operator != "SparseConv" or not is_standard(follower, "Add"):
        return layer
    other = _other(follower, layer.output)
    if other == layer.output or graph.constant(other) is not None:
        return layer
    if not same_shape(graph.shape(layer.output), graph.shape(other)):
        return layer
    return replace(layer, nodes=(*layer.nodes, follower), residual=other)


def _with_limits(graph: Graph, layer: Layer, follower: onnx.NodeProto) -> Layer:
    limits = _limits(graph, follower)
    return layer if limits is None else replace(layer, nodes=(*layer.nodes, follower), limits=limits)


def _limits(graph: Graph, node: onnx.NodeProto) -> Limits | None:
    """Give the limits of an activation that cuts off; none for other operators."""
    if is_standard(node, "Relu"):
        return (0.0, np.inf)
    if not is_standard(node, "Clip"):
        return None
    settings = attributes(node)
    found = [settings.get("min", -np.inf), settings.get("max", np.inf)]
    for place, name in enumerate(node.input[1:3]):
        value = graph.constant(name) if name else np.float32(found[place])
        if value is None or value.dtype != np.float32 or value.size != 1:
            return None
        found[place] = float(value.reshape(()))
    return (found[0], found[1]) if found[0] <= found[1] else None


def _other(node: onnx.NodeProto, name: str) -> str:
    """Give the other input of an operator of two."""
    return str(node.input[1] if node.input[0] == name else node.input[0])
