"""Softmax attention next to sparse products: one operator reads queries, keys and values as the products left them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import helper

from rigl_compress.runtime.axis_tracing import Axis, Size, Tracing, size_of
from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, is_standard

OPERATOR = "Attention"
_ROWS, _COLUMNS = (0, 1, 2, 3), (0, 1, 3, 2)  # [samples, heads, tokens, features], and with the last two turned


@dataclass(frozen=True)
class _Scores:
    """What the softmax is applied to: scale · a · b + mask."""

    product: onnx.NodeProto
    scale: float = 1.0
    mask: str = ""


@dataclass(frozen=True)
class _Heads:
    """The heads that are read from a value [samples, tokens, features]."""

    value: str
    count: int
    size: int
    first: int
    scale: float
    sizes: tuple[Size, Size]  # samples and tokens


def fuse_attention(model: onnx.ModelProto, graph: Graph, layers: Iterable[Layer], threads: int) -> None:
    """Replace attention whose queries, keys or values are outputs of sparse products.

    The graph is that before the layers were replaced. What nothing else uses is left for others to remove.
    """
    products = {layer.output for layer in layers if layer.operator == "SparseMatMul"}
    added: dict[str, onnx.NodeProto] = {}
    for node in graph.nodes:
        found = _match(graph, node) if products and is_standard(node, "Softmax") else None
        if found is not None and products & set(found.input[:3]):
            found.attribute.append(helper.make_attribute("threads", threads))
            added[found.output[0]] = found
    if added:
        nodes = [onnx.NodeProto.FromString(_swapped(node, added).SerializeToString()) for node in model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _swapped(node: onnx.NodeProto, added: Mapping[str, onnx.NodeProto]) -> onnx.NodeProto:
    return added.get(node.output[0], node) if node.output else node


def _match(graph: Graph, softmax: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the operator for a softmax between two products."""
    default = -1 if graph.opset >= 13 else 1
    mix = graph.only_consumer(softmax.output[0])
    scores = _scores(graph, softmax.input[0])
    if scores is None or mix is None or attributes(softmax).get("axis", default) not in (-1, 3):
        return None
    if not is_standard(mix, "MatMul") or mix.input[0] != softmax.output[0] or graph.is_half(softmax.output[0]):
        return None
    q, k = (_heads(graph, name, order) for name, order in zip(scores.product.input, (_ROWS, _COLUMNS), strict=True))
    v = _heads(graph, mix.input[1], _ROWS)
    if q is None or k is None or v is None or not q.count == k.count == v.count or q.size != k.size or v.scale != 1:
        return None
    output = _output(graph, mix, (q.sizes[0], q.count, q.sizes[1], v.size))
    return None if output is None else _node((q, k, v), scores, output)


def _node(heads: tuple[_Heads, _Heads, _Heads], scores: _Scores, output: str) -> onnx.NodeProto:
    q, k, v = heads
    settings: dict[str, Any] = {
        "heads": q.count,
        "size": q.size,
        "v_size": v.size,
        "first": [q.first, k.first, v.first],
    }
    settings["scale"] = scores.scale * q.scale * k.scale
    inputs = [q.value, k.value, v.value, *filter(None, [scores.mask])]
    return helper.make_node(OPERATOR, inputs, [output], output, domain="rigl_compress", **settings)


def _scores(graph: Graph, name: str) -> _Scores | None:
    """Follow a mask and a factor back to the product of queries and keys."""
    node = graph.producers.get(name)
    if node is None or graph.only_consumer(name) is None:
        return None
    if is_standard(node, "MatMul"):
        return _Scores(node)
    if is_standard(node, "Add"):
        return _masked(graph, node)
    tracing = Tracing(graph)
    if not is_standard(node, "Mul", "Div") or (factor := tracing.factor(node)) is None:
        return None
    found = _scores(graph, tracing.behind(node) or "")
    return None if found is None or found.mask else _Scores(found.product, found.scale * factor)


def _masked(graph: Graph, node: onnx.NodeProto) -> _Scores | None:
    """Return the scores of which one side is the product, and the other the mask."""
    for one, other in (node.input, node.input[::-1]):
        found = _scores(graph, one)
        if found is not None and not found.mask and 1 <= len(graph.shape(other) or ()) <= 4:
            return _Scores(found.product, found.scale, other)
    return None


def _heads(graph: Graph, name: str, order: tuple[int, ...]) -> _Heads | None:
    """Return the heads that a factor of a product reads; `order` are the places of its axes."""
    tracing = Tracing(graph)
    source = tracing.source(name)
    view = tracing.view(name, source)
    if view is None or len(view.axes) != 4 or len(graph.shape(source) or ()) != 3 or set(view.first) - {2}:
        return None
    samples, heads, tokens, features = (view.axes[place] for place in order)
    if (_plain(samples), _plain(tokens)) != tuple(_whole(graph, source, axis) for axis in (0, 1)):
        return None
    count, size = size_of(heads), size_of(features)
    if not isinstance(count, int) or not isinstance(size, int) or not _are_heads(heads, features):
        return None
    return _Heads(source, count, size, view.first.get(2, 0), view.scale, (size_of(samples), size_of(tokens)))


def _whole(graph: Graph, source: str, axis: int) -> Axis:
    view = Tracing(graph).view(source, source)
    return _plain(view.axes[axis]) if view is not None else ()


def _plain(axis: Axis) -> Axis:
    """Return an axis without factors of size 1."""
    return tuple(factor for factor in axis if factor.size != 1)


def _are_heads(heads: Axis, features: Axis) -> bool:
    """Check that heads follow one another, each a run of features."""
    inner, outer = _plain(features), _plain(heads)
    if any(factor.axis != 2 for factor in (*inner, *outer)) or len(inner) > 1 or len(outer) > 1:
        return False
    size = size_of(features)
    return all(factor.step == 1 for factor in inner) and all(factor.step == size for factor in outer)


def _output(graph: Graph, mix: onnx.NodeProto, sizes: tuple[Size, Size, Size, Size]) -> str | None:
    """Return the value [samples, tokens, heads · features] that is made of the result of attention."""
    name, tracing = str(mix.output[0]), Tracing(graph)
    start = tracing.start(name, sizes)
    node = graph.only_consumer(name)
    while start is not None and node is not None and is_standard(node, "Transpose", "Reshape"):
        name = str(node.output[0])
        view = tracing.view(name, str(mix.output[0]))
        if view is None:
            return None
        samples, heads, tokens, features = (_plain(axis) for axis in start.axes)
        if [_plain(axis) for axis in view.axes] == [samples, tokens, (*heads, *features)]:
            return name
        node = graph.only_consumer(name)
    return None
