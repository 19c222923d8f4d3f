"""LSTM and plain RNN layers: the inputs are multiplied for all steps at once, the state on sparse kernels."""

from typing import Any

import numpy as np
import onnx

from rigl_compress.runtime.gru_matching import BACKWARD, Array, rows_of
from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, float_constant, has_input

_GATES = {"LSTM": 4, "RNN": 1}
_LSTM_ACTIVATIONS = [b"Sigmoid", b"Tanh", b"Tanh"]
_RNN_ACTIVATIONS = {b"Tanh": "tanh", b"Sigmoid": "sigmoid"}
_PEEPHOLES = 7  # the index of this input


def match_lstm(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match an LSTM with constant weights and the default activations, without peepholes, clip or coupled gates."""
    settings = attributes(node)
    directions = len(BACKWARD.get(settings.get("direction", b"forward"), []))
    expected = _LSTM_ACTIVATIONS * directions
    if settings.get("activations", expected) != expected or settings.get("input_forget", 0):
        return None
    return None if has_input(node, _PEEPHOLES) else _match(graph, node, settings)


def match_rnn(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a plain RNN with constant weights, whose directions all have tanh or all sigmoid."""
    settings = attributes(node)
    directions = len(BACKWARD.get(settings.get("direction", b"forward"), []))
    given = settings.get("activations", [b"Tanh"] * directions)
    if len(given) != directions or len(set(given)) != 1 or given[0] not in _RNN_ACTIVATIONS:
        return None
    return _match(graph, node, settings, _RNN_ACTIVATIONS[given[0]])


def _match(graph: Graph, node: onnx.NodeProto, settings: dict[str, Any], activation: str = "") -> Layer | None:
    backward = BACKWARD.get(settings.get("direction", b"forward"), [])
    parts = _parts(graph, node, len(backward))
    plain = "clip" not in settings and settings.get("layout", 0) == 0 and bool(node.output[0])
    if parts is None or not plain or settings.get("hidden_size") != parts[1].shape[2]:
        return None
    inputs, states, biases = parts
    name, bias = f"{node.output[0]}/inputs", np.add(*np.split(biases, 2, axis=1)).reshape(-1)
    projection = Layer("SparseMatMul", (), node.input[0], rows_of(inputs), inputs.size, bias, name=name)
    return Layer(
        *(f"Sparse{node.op_type}", (node,), name, rows_of(states), states.size),
        residual=node.input[5] if has_input(node, 5) else "",
        lengths=node.input[4] if has_input(node, 4) else "",
        cell=node.input[6] if node.op_type == "LSTM" and has_input(node, 6) else "",
        activation=activation,
        settings={"backward": backward},
        projection=projection,
    )


def _parts(graph: Graph, node: onnx.NodeProto, directions: int) -> tuple[Array, Array, Array] | None:
    """Return the weights of the inputs and of the state, and the biases, if constant and of consistent shapes."""
    inputs, states = float_constant(graph, node.input[1], 3), float_constant(graph, node.input[2], 3)
    if inputs is None or states is None:
        return None
    size = states.shape[2]
    rows = _GATES[node.op_type] * size
    zeros = np.zeros((directions, 2 * rows), np.float32)
    biases = float_constant(graph, node.input[3], 2) if has_input(node, 3) else zeros
    if biases is None or biases.shape != zeros.shape:
        return None
    fits = states.shape == (directions, rows, size) and inputs.shape[:2] == (directions, rows)
    return (inputs, states, biases) if fits else None
