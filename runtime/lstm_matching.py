"""LSTM and plain RNN layers: the inputs are multiplied for all steps at once, the state on sparse kernels."""

from typing import Any

import numpy as np
import onnx

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, has_input
from rigl_compress.runtime.recurrent_weights import BACKWARD, constant_weights, rows_of

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
    parts = constant_weights(graph, node, len(backward), _GATES[node.op_type])
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
