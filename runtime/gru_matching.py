"""GRU layers: the inputs are multiplied for all steps at once, the state on sparse kernels."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, float_constant, has_input, is_standard

Array = NDArray[Any]
# Per direction: whether it runs from the last step to the first.
BACKWARD = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}
_GATES = [b"Sigmoid", b"Tanh"]


def name_states(model: onnx.ModelProto) -> None:
    """Name the unnamed first output of recurrent nodes of which only the last state is used: it identifies layers."""
    for node in model.graph.node:
        if is_standard(node, "GRU", "LSTM", "RNN") and len(node.output) > 1 and not node.output[0]:
            node.output[0] = f"{next(filter(None, node.output), node.name)}/states"


def match_gru(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a GRU with constant weights and the default activations, unidirectional or bidirectional."""
    settings = attributes(node)
    backward = BACKWARD.get(settings.get("direction", b"forward"), [])
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
    projection = Layer("SparseMatMul", (), node.input[0], rows_of(inputs), inputs.size, first, name=name)
    return Layer(
        *("SparseGRU", (node,), name, rows_of(states), states.size, second),
        residual=node.input[5] if has_input(node, 5) else "",
        lengths=node.input[4] if has_input(node, 4) else "",
        settings={"backward": backward, "reset_after": [reset_after]},
        projection=projection,
    )


def _parts(graph: Graph, node: onnx.NodeProto, directions: int) -> tuple[Array, Array, Array] | None:
    """Return the weights of the inputs and of the state, and the biases, if constant and of consistent shapes."""
    inputs, states = float_constant(graph, node.input[1], 3), float_constant(graph, node.input[2], 3)
    if inputs is None or states is None:
        return None
    size = states.shape[2]
    zeros = np.zeros((directions, 6 * size), np.float32)
    biases = float_constant(graph, node.input[3], 2) if has_input(node, 3) else zeros
    fits = biases is not None and biases.shape == zeros.shape
    fits = fits and states.shape == (directions, 3 * size, size) and inputs.shape[:2] == (directions, 3 * size)
    return (inputs, states, biases) if fits and biases is not None else None


def rows_of(weight: Array) -> Array:
    """Return the weights of all directions as one matrix."""
    return weight.reshape(-1, weight.shape[2])


def _biases(biases: Array, reset_after: bool) -> tuple[Array, Array | None]:
    """Return the bias of the products of the inputs, and that of the candidate, which the reset gate scales."""
    inputs_bias, recurrent = np.split(biases, 2, axis=1)
    if not reset_after:
        return (inputs_bias + recurrent).reshape(-1), None
    candidate = np.arange(inputs_bias.shape[1]) >= inputs_bias.shape[1] // 3 * 2
    unscaled = inputs_bias + np.where(candidate, np.float32(0), recurrent)
    return unscaled.reshape(-1), recurrent[:, candidate].reshape(-1)
