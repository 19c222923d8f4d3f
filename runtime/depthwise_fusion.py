"""Depthwise convolutions together with the sparse 1×1 convolution before them and the means after them."""

from collections.abc import Mapping, Sequence
from math import prod

import onnx
from onnx import helper

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, is_standard

OPERATOR = "SparseDepthwise"
# Every row of the 1×1 convolution reads its input, which should stay in the L2 cache, and that cache is slower than the
# tiles of other kernels: with many non-zeros in a row they take less time.
_CACHED_BYTES, _MOST_NONZEROS = 2**20, 20
_EPILOGUE = ("low", "high", "activation")
Nodes = dict[str, onnx.NodeProto]


def fuse_depthwise(model: onnx.ModelProto, graph: Graph, layers: Sequence[Layer]) -> None:
    """Let depthwise convolutions compute what they read, and the means of their output, where that gains.

    The graph is that before layers were replaced.
    """
    nodes = {node.output[0]: node for node in model.graph.node if node.output}
    pointwise = {layer.output for layer in layers if _widens(layer, graph)}
    new: Nodes = {}
    removed: set[str] = set()
    for name, node in nodes.items():
        if node.op_type == "DepthwiseConv":
            fused = node.input[0] in pointwise
            new[name] = _joined(nodes[node.input[0]], node) if fused else onnx.NodeProto.FromString(_bytes(node))
            mean = _mean(graph, name, nodes)
            if mean:
                new[name].output.append(mean)
                new[name].attribute.append(helper.make_attribute("with_means", 1))
            removed.update(each for each in (node.input[0] if fused else "", mean) if each)
    _swap(model, new, removed)


def _widens(layer: Layer, graph: Graph) -> bool:
    """Check for a 1×1 convolution of few inputs, without gate or residual, whose output is read once."""
    shape = graph.shape(layer.x)
    if layer.operator != "SparseConv" or shape is None or len(shape) != 4 or layer.residual or layer.gate:
        return False
    window = [layer.settings[name] for name in ("kernel_shape", "strides", "pads")]
    sizes = [size for size in shape[1:] if isinstance(size, int)]
    small = len(sizes) == 3 and 4 * prod(sizes) <= _CACHED_BYTES
    small = small and layer.nonzeros <= _MOST_NONZEROS * len(layer.matrix)
    alone = not layer.after and not layer.before and graph.only_consumer(layer.output) is not None
    return small and alone and window == [[1, 1], [1, 1], [0] * 4]


def _bytes(node: onnx.NodeProto) -> bytes:
    content: bytes = node.SerializeToString()
    return content


def _joined(before: onnx.NodeProto, node: onnx.NodeProto) -> onnx.NodeProto:
    inner = {f"inner_{name}": value for name, value in attributes(before).items() if name in _EPILOGUE}
    inputs = [*before.input, *[""] * (3 - len(before.input)), *node.input[1:]]
    settings = attributes(node) | inner
    return helper.make_node(OPERATOR, inputs, [node.output[0]], node.name, domain=node.domain, **settings)


def _mean(graph: Graph, name: str, nodes: Mapping[str, onnx.NodeProto]) -> str:
    """Return the mean over the pixels of an image, or an empty string if none is computed of it."""
    users = (user for user in graph.consumers.get(name, ()) if user.output and user.output[0] in nodes)
    means = (user.output[0] for user in users if _takes_mean(graph, user) and nodes[user.output[0]] == user)
    return next(means, "")


def _takes_mean(graph: Graph, node: onnx.NodeProto) -> bool:
    if is_standard(node, "GlobalAveragePool"):
        return True
    given = attributes(node)
    if not is_standard(node, "ReduceMean") or given.get("keepdims", 1) != 1:
        return False
    constant = graph.constant(node.input[1]) if len(node.input) > 1 else None
    axes = given.get("axes", [] if constant is None else constant.reshape(-1).tolist())
    return sorted(axis % 4 for axis in axes) == [2, 3]


def _swap(model: onnx.ModelProto, new: Nodes, removed: set[str]) -> None:
    kept = (new.get(node.output[0], node) if node.output else node for node in model.graph.node)
    copies = [onnx.NodeProto.FromString(_bytes(node)) for node in kept if not removed & set(node.output[:1])]
    del model.graph.node[:]
    model.graph.node.extend(copies)
