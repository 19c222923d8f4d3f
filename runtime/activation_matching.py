"""Activations that the kernels apply to their output, found in the graph as exporters write them."""

from collections.abc import Iterator
from math import isclose, pi, sqrt

import onnx

from rigl_compress.runtime.onnx_graph import Graph, attributes, is_standard

# The value, the nodes that compute it from the input, the last one last.
Found = tuple[str, tuple[onnx.NodeProto, ...]]
_ONE_NODE = {"Sigmoid": "sigmoid", "Tanh": "tanh", "HardSwish": "hard-swish"}
_CUBE = 0.044715  # of the Gelu with tanh


def find_activation(graph: Graph, name: str) -> Found | None:
    """Return the activation of a value that nothing else uses, and its nodes."""
    users = graph.consumers.get(name, ())
    if name in graph.outputs or not 1 <= len(users) <= 3:
        return None
    found = (match(graph, name) for match in (_gated, _erf_gelu, _tanh_gelu, _one_node))
    return next((each for each in found if each is not None and _covers(graph, name, each[1])), None)


def _covers(graph: Graph, name: str, nodes: tuple[onnx.NodeProto, ...]) -> bool:
    """Check that nothing but these nodes uses the value and what they compute before the last."""
    inner = {name, *(node.output[0] for node in nodes[:-1])}
    outputs = {node.output[0] for node in nodes}
    users = (user for each in inner for user in graph.consumers.get(each, ()))
    return not inner & graph.outputs and all(user.output[0] in outputs for user in users)


def _one_node(graph: Graph, name: str) -> Found | None:
    node = graph.only_consumer(name)
    if node is None:
        return None
    if is_standard(node, "Gelu"):
        form = attributes(node).get("approximate", b"none")
        return {b"none": ("gelu", (node,)), b"tanh": ("gelu-tanh", (node,))}.get(form)
    if is_standard(node, "Swish") and attributes(node).get("alpha", 1.0) == 1.0:
        return "silu", (node,)
    return (_ONE_NODE[node.op_type], (node,)) if is_standard(node, *_ONE_NODE) else None


def _gated(graph: Graph, name: str) -> Found | None:
    """Match x · sigmoid(x), and x · hard-sigmoid(x)."""
    for gate in _users(graph, name, "Sigmoid", "HardSigmoid"):
        product = next(_users(graph, gate.output[0], "Mul"), None)
        if product is None or sorted(product.input) != sorted((name, gate.output[0])):
            continue
        if gate.op_type == "Sigmoid":
            return "silu", (gate, product)
        given = attributes(gate)
        if isclose(given.get("alpha", 0.2), 1 / 6, rel_tol=1e-6) and given.get("beta", 0.5) == 0.5:
            return "hard-swish", (gate, product)
    return None


def _erf_gelu(graph: Graph, name: str) -> Found | None:
    """Match x · (1 + erf(x / √2)) / 2, its products in any order."""
    for scaled in _users(graph, name, "Div", "Mul"):
        divides = scaled.op_type == "Div" and scaled.input[0] == name
        factor = _factor(graph, scaled, name)
        if factor is None or not isclose(1 / factor if divides else factor, sqrt(0.5), rel_tol=1e-5):
            continue
        nodes = _chain(graph, scaled, [("Erf", None), ("Add", 1.0)])
        half = None if nodes is None else _halved(graph, name, nodes)
        if half is not None:
            return "gelu", half
    return None


def _tanh_gelu(graph: Graph, name: str) -> Found | None:
    """Match x · (1 + tanh(√(2 / π) · (x + 0.044715 x³))) / 2, as torch writes it."""
    for cube in _users(graph, name, "Pow"):
        nodes = _chain(graph, cube, [("Mul", _CUBE)]) if _factor(graph, cube, name) == 3 else None
        added = None if nodes is None else next(_users(graph, nodes[-1].output[0], "Add"), None)
        if nodes is None or added is None or sorted(added.input) != sorted((name, nodes[-1].output[0])):
            continue
        rest = _chain(graph, added, [("Mul", sqrt(2 / pi)), ("Tanh", None), ("Add", 1.0)])
        half = None if rest is None else _halved(graph, name, (*nodes, *rest))
        if half is not None:
            return "gelu-tanh", half
    return None


def _halved(graph: Graph, name: str, nodes: tuple[onnx.NodeProto, ...]) -> tuple[onnx.NodeProto, ...] | None:
    """Complete x · y / 2, where the last node computes y: half of x, of y or of the product."""
    last = nodes[-1].output[0]
    for one in _users(graph, name, "Mul"):
        if _factor(graph, one, name) == 0.5:
            product = next(_users(graph, one.output[0], "Mul"), None)
            return _ended(product, (one.output[0], last), (one, *nodes))
    product = next(_users(graph, last, "Mul"), None)
    if product is not None and _factor(graph, product, last) == 0.5:
        following = next(_users(graph, product.output[0], "Mul"), None)
        return _ended(following, (name, product.output[0]), (*nodes, product))
    whole = _ended(product, (name, last), nodes)
    half = _chain(graph, product, [("Mul", 0.5)]) if product is not None and whole is not None else None
    return None if half is None else (*nodes, *half)


def _ended(
    node: onnx.NodeProto | None, inputs: tuple[str, str], nodes: tuple[onnx.NodeProto, ...]
) -> tuple[onnx.NodeProto, ...] | None:
    return (*nodes, node) if node is not None and sorted(node.input) == sorted(inputs) else None


def _users(graph: Graph, name: str, *types: str) -> Iterator[onnx.NodeProto]:
    return (node for node in graph.consumers.get(name, ()) if is_standard(node, *types))


def _chain(
    graph: Graph, node: onnx.NodeProto, steps: list[tuple[str, float | None]]
) -> tuple[onnx.NodeProto, ...] | None:
    """Follow a node through these operators, each with its constant, or with no other input."""
    nodes = [node]
    for kind, constant in steps:
        name = nodes[-1].output[0]
        follower = next(_users(graph, name, kind), None)
        if follower is None or not _fits(graph, follower, name, constant):
            return None
        nodes.append(follower)
    return tuple(nodes)


def _fits(graph: Graph, node: onnx.NodeProto, name: str, constant: float | None) -> bool:
    if constant is None:
        return len(node.input) == 1
    found = _factor(graph, node, name)
    return found is not None and isclose(found, constant, rel_tol=1e-5)


def _factor(graph: Graph, node: onnx.NodeProto, name: str) -> float | None:
    """Return the constant with which a binary node combines a value: a single number, of no higher rank."""
    if len(node.input) != 2 or name not in node.input or node.input[0] == node.input[1]:
        return None
    array = graph.constant(node.input[1] if node.input[0] == name else node.input[0])
    if array is None or array.size != 1 or array.ndim > len(graph.shape(name) or ()):
        return None
    return float(array.reshape(()))
