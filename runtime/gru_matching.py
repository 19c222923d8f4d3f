"""GRU layers: the inputs are multiplied for all steps at once, the state on sparse kernels."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, attributes, has_input
from rigl_compress.runtime.recurrent_weights import BACKWARD, constant_weights, rows_of

Array = NDArray[Any]
_GATES = 3
_ACTIVATIONS = [b"Sigmoid", b"Tanh"]


def match_gru(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a GRU with constant weights and the default activations, unidirectional or bidirectional."""
    settings = attributes(node)
    backward = BACKWARD.get(settings.get("direction", b"forward"), [])
    parts = constant_weights(graph, node, len(backward), _GATES)
    expected = _ACTIVATIONS * len(backward)
    plain = "clip" not in settings and settings.get("layout", 0) == 0 and bool(node.output[0])
    if parts is None or not plain or settings.get("activations", expected) != expected:
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


def _biases(biases: Array, reset_after: bool) -> tuple[Array, Array | None]:
    """Return the bias of the products of the inputs, and that of the candidate, which the reset gate scales."""
    inputs_bias, recurrent = np.split(biases, 2, axis=1)
    if not reset_after:
        return (inputs_bias + recurrent).reshape(-1), None
    candidate = np.arange(inputs_bias.shape[1]) >= inputs_bias.shape[1] // 3 * 2
    unscaled = inputs_bias + np.where(candidate, np.float32(0), recurrent)
    return unscaled.reshape(-1), recurrent[:, candidate].reshape(-1)
