"""Reasons for which no sparse kernel can replace a layer, in one sentence each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rigl_compress.runtime.layer_matching import MAX_GROUPED_WEIGHTS
from rigl_compress.runtime.onnx_graph import Array, Graph, attributes, has_input, is_standard

# Operators with weights, and the inputs that may hold them.
WEIGHTED: Mapping[str, tuple[int, ...]] = {
    **{"Conv": (1,), "ConvTranspose": (1,), "Gemm": (1,), "MatMul": (1, 0), "Einsum": (1, 0)},
    **{"GRU": (2,), "LSTM": (2,), "RNN": (2,)},
    **{"ConvInteger": (1,), "MatMulInteger": (1,), "QLinearConv": (3,), "QLinearMatMul": (3,)},
}
_ALWAYS_WEIGHTED = ("Conv", "ConvTranspose", "GRU", "LSTM", "RNN")
_QUANTIZED = ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")
_FLOATS = (np.float32, np.float16)


@dataclass(frozen=True)
class Weight:
    """The weights of a node: the name of the initializer they come from, and their array if they are constant."""

    name: str
    array: Array | None
    shape: tuple[int, ...]


def weight_of(graph: Graph, node: onnx.NodeProto) -> Weight | None:
    """Return the weights of a node; None for operators without weights, and for products of two activations."""
    if not is_standard(node, *WEIGHTED):
        return None
    names = [node.input[index] for index in WEIGHTED[node.op_type] if has_input(node, index)]
    for name in names:
        array = graph.constant(name)
        if array is not None and array.ndim > 1:
            return Weight(origin(graph, name), array, array.shape)
    for name in names:
        shape = graph.shape(name) or ()
        known = tuple(axis if isinstance(axis, int) else 0 for axis in shape)
        if node.op_type in _ALWAYS_WEIGHTED or graph.is_initializer(name):
            return Weight(name, None, known)
    return None


def origin(graph: Graph, name: str) -> str:
    """Return the initializer that a constant is computed from, or its own name."""
    producer = graph.producers.get(name)
    while producer is not None and producer.input and not is_standard(producer, "Constant"):
        name = producer.input[0]
        producer = graph.producers.get(name)
    return name


def structural_reason(graph: Graph, node: onnx.NodeProto) -> str:
    """Return why no sparse kernel can replace a node."""
    weight = weight_of(graph, node)
    if weight is None or weight.array is None:
        names = [node.input[index] for index in WEIGHTED.get(node.op_type, ()) if has_input(node, index)]
        overridable = any(graph.is_initializer(name) for name in names)
        return "callers may override the weights" if overridable else "weights are not constant"
    if node.op_type in _QUANTIZED:
        return "the layer computes in integers"
    if weight.array.dtype.type not in _FLOATS:
        return f"weights are {weight.array.dtype}, not float32 or float16"
    if any(graph.reads_quantized(name) and graph.constant(name) is None for name in node.input[:2]):
        return "the layer computes in integers: its input is dequantized"
    return _REASONS.get(node.op_type, _no_kernel)(graph, node, weight)


def _no_kernel(_graph: Graph, node: onnx.NodeProto, _weight: Weight) -> str:
    return f"no sparse kernel for {node.op_type}"


def _conv(graph: Graph, node: onnx.NodeProto, weight: Weight) -> str:
    settings = attributes(node)
    groups = settings.get("group", 1)
    if len(weight.shape) not in (3, 4):
        return f"no sparse kernel for Conv{len(weight.shape) - 2}d"
    if has_input(node, 2) and graph.constant(node.input[2]) is None:
        return "the bias is not constant"
    if groups > 1 and int(np.prod(weight.shape)) * groups > MAX_GROUPED_WEIGHTS:
        return (
            f"grouped convolution of {groups} groups: its weights expanded over all inputs would take too much memory"
        )
    if settings.get("auto_pad", b"NOTSET") != b"NOTSET":
        return "padding by auto_pad depends on the size of the image, which is not known"
    return "no sparse kernel for this kernel size, stride, dilation or padding"


def _conv_transpose(_graph: Graph, _node: onnx.NodeProto, weight: Weight) -> str:
    if len(weight.shape) != 4:
        return f"no sparse kernel for ConvTranspose{len(weight.shape) - 2}d"
    return "no sparse kernel for a ConvTranspose with groups, overlapping strides, dilation or padding"


def _gemm(graph: Graph, node: onnx.NodeProto, _weight: Weight) -> str:
    rank = graph.shape(node.input[0])
    if rank is None or len(rank) != 2:
        return "the rank of the input is not known"
    return "the bias is not constant, or differs by sample"


def _matmul(_graph: Graph, _node: onnx.NodeProto, weight: Weight) -> str:
    if len(weight.shape) > 2:
        return "a product with another matrix for each sample"
    return "the rank of the input is not known, or has no sparse kernel"


def _einsum(_graph: Graph, node: onnx.NodeProto, _weight: Weight) -> str:
    return f"no sparse kernel for Einsum {attributes(node).get('equation', b'').decode()!r}"


def _recurrent(_graph: Graph, node: onnx.NodeProto, _weight: Weight) -> str:
    settings: dict[str, Any] = attributes(node)
    if "clip" in settings or "activations" in settings:
        return f"no sparse kernel for {node.op_type} with clip or other activations"
    if settings.get("layout", 0):
        return f"no sparse kernel for {node.op_type} with the batch first"
    if node.op_type == "LSTM" and (settings.get("input_forget", 0) or has_input(node, 7)):
        return "no sparse kernel for LSTM with peepholes or coupled gates"
    return f"no sparse kernel for {node.op_type} with weights of this shape"


_REASONS: Mapping[str, Callable[[Graph, onnx.NodeProto, Weight], str]] = {
    **{"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul, "Einsum": _einsum},
    **{"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent},
}
