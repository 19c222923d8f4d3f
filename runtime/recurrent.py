"""GRU layers: the products of the inputs are made for all steps at once, those of the state on sparse kernels."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.runtime.graph import Graph, attributes, floats, has, is_standard
from rigl_compress.runtime.layers import Layer

Array = NDArray[Any]
# Whether each direction begins at the end.
_BACKWARD = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}
_GATES = [b"Sigmoid", b"Tanh"]


def name_states(model: onnx.ModelProto) -> None:
    """Give a name to the states of GRU layers of which only the last is used: operators go by their first output."""
    for node in model.graph.node:
        if is_standard(node, "GRU") and len(node.output) > 1 and not node.output[0]:
            node.output[0] = f"{node.output[1]}/states"


def match_gru(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Recognize a GRU with constant weights and the usual activations, of one direction or of both."""
    settings = attributes(node)
    backward = _BACKWARD.get(settings.get("direction", b"forward"), [])
    parts = _parts(graph, node, len(backward))
    plain = "clip" not in settings and settings.get("layout", 0) == 0 and bool(node.output[0])
    if parts is None or not plain or settings.get("activations", _GATES * len(backward)) != _GATES * len(backward):
        return None
    inputs, states, biases = parts
    if settings.get("hidden_size") != states.shape[2]:
        return None
    reset_after = int(settings.get("linear_before_reset", 0) != 0)
    first, second = _biases(biases, bool(reset_after))
    name = f"{node.output[0]}/inputs"
    projection = Layer("SparseMatMul", (), node.input[0], _rows(inputs), inputs.size, first, name=name)
    return Layer(
        *("SparseGRU", (node,), name, _rows(states), states.size, second),
        residual=node.input[5] if has(node, 5) else "",
        lengths=node.input[4] if has(node, 4) else "",
        settings={"backward": backward, "reset_after": [reset_after]},
        projection=projection,
    )


def _parts(graph: Graph, node: onnx.NodeProto, directions: int) -> tuple[Array, Array, Array] | None:
    """Give the weights of the inputs and of the state, and the biases, if all are constant and fit each other."""
    inputs, states = floats(graph, node.input[1], 3), floats(graph, node.input[2], 3)
    if inputs is None or states is None:
        return None
    size = states.shape[2]
    biases = floats(graph, node.input[3], 2) if has(node, 3) else np.zeros((directions, 6 * size), np.float32)
    fits = biases is not None and biases.shape == (directions, 6 * size)
    fits = fits and states.shape == (directions, 3 * size, size) and inputs.shape[:2] == (directions, 3 * size)
    return (inputs, states, biases) if fits and biases is not None else None


def _rows(weight: Array) -> Array:
    return weight.reshape(-1, weight.shape[2])


def _biases(biases: Array, reset_after: bool) -> tuple[Array, Array | None]:
    """Give what is added to the products of the inputs, and to that of the new state before it is reset."""
    own, recurrent = np.split(biases, 2, axis=1)
    if not reset_after:
        return (own + recurrent).reshape(-1), None
    new = np.arange(own.shape[1]) >= own.shape[1] // 3 * 2
    return (own + np.where(new, np.float32(0), recurrent)).reshape(-1), recurrent[:, new].reshape(-1)
