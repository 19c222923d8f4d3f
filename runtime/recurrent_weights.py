"""What GRU, LSTM and RNN layers share: their directions, their constant weights and the names of their states."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.runtime.onnx_graph import Graph, float_constant, has_input, is_standard

Array = NDArray[Any]
# Per direction: whether it runs from the last step to the first.
BACKWARD = {b"forward": [0], b"reverse": [1], b"bidirectional": [0, 1]}


def name_states(model: onnx.ModelProto) -> None:
    """Name the unnamed first output of recurrent nodes of which only the last state is used: it identifies layers."""
    for node in model.graph.node:
        if is_standard(node, "GRU", "LSTM", "RNN") and len(node.output) > 1 and not node.output[0]:
            node.output[0] = f"{next(filter(None, node.output), node.name)}/states"


def constant_weights(
    graph: Graph, node: onnx.NodeProto, directions: int, gates: int
) -> tuple[Array, Array, Array] | None:
    """Return the weights of the inputs and of the state, and the biases, if constant and of consistent shapes."""
    inputs, states = float_constant(graph, node.input[1], 3), float_constant(graph, node.input[2], 3)
    if inputs is None or states is None:
        return None
    size = states.shape[2]
    rows = gates * size
    zeros = np.zeros((directions, 2 * rows), np.float32)
    biases = float_constant(graph, node.input[3], 2) if has_input(node, 3) else zeros
    if biases is None or biases.shape != zeros.shape:
        return None
    fits = states.shape == (directions, rows, size) and inputs.shape[:2] == (directions, rows)
    return (inputs, states, biases) if fits else None


def rows_of(weight: Array) -> Array:
    """Return the weights of all directions as one matrix."""
    return weight.reshape(-1, weight.shape[2])
