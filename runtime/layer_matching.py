"""Layers that can run on sparse kernels: a node with constant weights, and the nodes that can be fused with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.runtime.activation_matching import find_activation
from rigl_compress.runtime.auto_padding import padding
from rigl_compress.runtime.onnx_graph import Graph, attributes, float_constant, has_input, is_standard, same_shape
from rigl_compress.runtime.packed_weights import conv_matrix

Array = NDArray[Any]
Limits = tuple[float, float]
NO_LIMITS: Limits = (-np.inf, np.inf)
MAX_WINDOW = 65536  # kernel, stride, dilation or padding of a convolution, as in native/conv.cpp
MAX_GROUPED_WEIGHTS = 2**25  # of a grouped convolution, expanded over the inputs of all groups
DEPTHWISE = "DepthwiseConv"  # dense; replaced only to keep the layout of its sparse neighbors


@dataclass(frozen=True, eq=False)
class Layer:
    """Nodes of the graph that one sparse operator can replace."""

    operator: str
    nodes: tuple[onnx.NodeProto, ...]
    x: str
    matrix: Array  # [outputs, inputs]; for a grouped convolution, over the inputs of all groups; or [channels, taps]
    weights: int  # in the dense operator
    bias: Array | None = None
    residual: str = ""
    limits: Limits = NO_LIMITS
    activation: str = ""  # applied to the output, one of kernels.ACTIVATIONS
    settings: Mapping[str, list[int]] = field(default_factory=dict)
    projection: "Layer | None" = None  # of the inputs of a recurrent layer, whose residual is the initial state
    name: str = ""  # of a projection's output
    lengths: str = ""  # sequence lengths of a recurrent layer
    cell: str = ""  # initial cell of an LSTM
    gathered: int = 0  # inputs that a Gather copies one by one if the layer stays dense
    before: tuple[onnx.NodeProto, ...] = ()  # nodes that compute its input
    after: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # operators, with attributes, that compute its output
    read: str = ""  # the value that its input has the shape of, if nodes before it compute the input
    scales: tuple[Array, ...] = ()  # of weights that were dequantized: they may be multiples of one of these
    gate: str = ""  # a factor for each channel of the input of a convolution
    spread: int = 1  # pixels of the output for each pixel of the convolution

    @cached_property
    def nonzeros(self) -> int:
        """The number of weights that are not zero."""
        return int(np.count_nonzero(self.matrix))

    @property
    def output(self) -> str:
        """The value that the layer produces."""
        return str(self.nodes[-1].output[0]) if self.nodes else self.name


Match = Callable[[Graph, onnx.NodeProto], Layer | None]


def find_layers(graph: Graph, matchers: Mapping[str, Match]) -> list[Layer]:
    """Find all layers with constant weights, each with the nodes fused to it; no node belongs to two layers."""
    found: list[Layer] = []
    taken: set[str] = set()
    for node in graph.nodes:
        match = matchers.get(node.op_type) if is_standard(node, node.op_type) else None
        layer = match(graph, node) if match else None
        if layer is None or node.output[0] in taken:
            continue
        layer = _fused(graph, layer, taken) if layer.projection is None and not layer.after else layer
        taken.update(name for each in layer.nodes for name in each.output)
        found.append(layer)
    return found


def match_conv(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a convolution with constant float32 weights."""
    weight, settings = float_constant(graph, node.input[1], 3, 4), attributes(node)
    bias = float_constant(graph, node.input[2], 1) if has_input(node, 2) else None
    if weight is None or (has_input(node, 2) and bias is None):
        return None
    axes = weight.ndim - 2
    kept = {
        "kernel_shape": list(weight.shape[2:]),
        "strides": list(settings.get("strides", [1] * axes)),
        "dilations": list(settings.get("dilations", [1] * axes)),
    }
    pads = padding(settings, kept, graph.shape(node.input[0]))
    if pads is None:
        return None
    kept["pads"] = pads
    groups = settings.get("group", 1)
    declared = settings.get("kernel_shape", kept["kernel_shape"])
    if declared != kept["kernel_shape"] or not can_run(kept) or groups < 1 or len(weight) % groups:
        return None
    if bias is not None and len(bias) != len(weight):
        return None
    if _is_depthwise(weight, groups, kept):
        return Layer(DEPTHWISE, (node,), node.input[0], weight.reshape(groups, -1), weight.size, bias, settings=kept)
    if groups > 1 and weight.size * groups > MAX_GROUPED_WEIGHTS:
        return None
    matrix = conv_matrix(weight, groups)
    return Layer("SparseConv", (node,), node.input[0], matrix, weight.size, bias, settings=kept)


def can_run(settings: Mapping[str, list[int]]) -> bool:
    """Check whether the kernels support a window; ONNX Runtime runs or rejects the others."""
    axes = len(settings["kernel_shape"])
    lowest = {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0}
    lengths = {**dict.fromkeys(lowest, axes), "pads": 2 * axes}
    return all(
        len(settings[name]) == lengths[name] and all(low <= value <= MAX_WINDOW for value in settings[name])
        for name, low in lowest.items()
    )


def _is_depthwise(weight: Array, groups: int, settings: Mapping[str, list[int]]) -> bool:
    """Check for a depthwise convolution of images, padded no further than the kernel reaches."""
    return groups > 1 and weight.ndim == 4 and weight.shape[:2] == (groups, 1) and _within_reach(settings)


def _within_reach(settings: Mapping[str, list[int]]) -> bool:
    """Check that a window is padded no further than the kernel reaches."""
    reach = [(size - 1) * step for size, step in zip(settings["kernel_shape"], settings["dilations"], strict=True)]
    return all(0 <= pad <= far for pad, far in zip(settings["pads"], reach * 2, strict=True))


def match_gemm(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a Gemm with constant float32 weights."""
    weight, settings = float_constant(graph, node.input[1], 2), attributes(node)
    # Sparse products accept inputs of any rank, a Gemm only of rank 2.
    if weight is None or settings.get("transA", 0) or len(graph.shape(node.input[0]) or ()) != 2:
        return None
    matrix = (weight if settings.get("transB", 0) else weight.T) * np.float32(settings.get("alpha", 1.0))
    if not has_input(node, 2):
        return Layer("SparseMatMul", (node,), node.input[0], matrix, weight.size)
    added = graph.constant(node.input[2])
    bias = _as_bias(added, len(matrix))
    if added is None or added.ndim > 2 or bias is None:
        return None
    return Layer(
        "SparseMatMul", (node,), node.input[0], matrix, weight.size, bias * np.float32(settings.get("beta", 1))
    )


def match_matmul(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a MatMul with constant float32 weights."""
    weight = float_constant(graph, node.input[1], 2)
    return None if weight is None else Layer("SparseMatMul", (node,), node.input[0], weight.T, weight.size)


def _as_bias(array: Array | None, outputs: int) -> Array | None:
    """Return a constant as a bias per output, if it is added along the last axis."""
    if array is None or array.dtype != np.float32:
        return None
    along_the_last = array.size == outputs and array.shape[-1:] == (outputs,)
    return np.broadcast_to(array.reshape(-1), (outputs,)) if along_the_last or array.size == 1 else None


def _fused(graph: Graph, layer: Layer, taken: set[str]) -> Layer:
    """Fuse the nodes that follow, as far as the epilogue of the kernels covers them."""
    for step in (_with_norm, _with_bias, _with_residual, _with_limits):
        follower = graph.only_consumer(layer.output)
        if follower is not None and follower.output[0] not in taken:
            layer = step(graph, layer, follower)
    return _with_activation(graph, layer, taken)


def _with_activation(graph: Graph, layer: Layer, taken: set[str]) -> Layer:
    found = find_activation(graph, layer.output) if layer.limits == NO_LIMITS else None
    if found is None or any(node.output[0] in taken for node in found[1]):
        return layer
    activation, nodes = found
    return replace(layer, nodes=(*layer.nodes, *nodes), activation=activation)


def match_norm(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match batch normalization of images with fixed statistics: a 1×1 depthwise convolution."""
    normalization = _normalization(graph, node)
    if normalization is None or len(graph.shape(node.input[0]) or ()) != 4:
        return None
    factor, shift = normalization
    settings = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1]}
    matrix, bias = factor[:, None].astype(np.float32), shift.astype(np.float32)
    return Layer(DEPTHWISE, (node,), node.input[0], matrix, factor.size, bias, settings=settings)


def _normalization(graph: Graph, node: onnx.NodeProto) -> tuple[Array, Array] | None:
    """Return the factor and the shift of each channel under batch normalization."""
    settings = attributes(node)
    parts = [part for name in node.input[1:] if (part := float_constant(graph, name, 1)) is not None]
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
    normalization = _normalization(graph, follower)
    if normalization is None or len(normalization[0]) != len(layer.matrix):
        return layer
    factor, shift = normalization
    bias = shift if layer.bias is None else shift + layer.bias * factor
    matrix = (layer.matrix * factor[:, None]).astype(np.float32)
    return replace(layer, nodes=(*layer.nodes, follower), matrix=matrix, bias=bias.astype(np.float32))


def _with_bias(graph: Graph, layer: Layer, follower: onnx.NodeProto) -> Layer:
    if layer.operator != "SparseMatMul" or layer.bias is not None or not is_standard(follower, "Add"):
        return layer
    bias = _as_bias(graph.constant(_other(follower, layer.output)), len(layer.matrix))
    # A constant of higher rank would raise the rank of the output.
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
    """Return the limits of a Relu or Clip; None for other nodes."""
    if is_standard(node, "Relu"):
        return (0.0, np.inf)
    if not is_standard(node, "Clip"):
        return None
    settings = attributes(node)
    found = [settings.get("min", -np.inf), settings.get("max", np.inf)]
    for index, name in enumerate(node.input[1:3]):
        value = graph.constant(name) if name else np.float32(found[index])
        if value is None or value.dtype != np.float32 or value.size != 1:
            return None
        found[index] = float(value.reshape(()))
    return (found[0], found[1]) if found[0] <= found[1] else None


def _other(node: onnx.NodeProto, name: str) -> str:
    """Return the other input of a binary node."""
    return str(node.input[1] if node.input[0] == name else node.input[0])
