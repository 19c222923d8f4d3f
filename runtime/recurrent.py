"""GRU layers: the products of the inputs are made for all steps at once, those of the state on sparse kernels."""

import numpy as np
import onnx

from rigl_compress.runtime.graph import Graph, attributes, floats, has
from rigl_compress.runtime.layers import Layer

# What the kernels compute: the equations as torch has them, forward, without cuts or lengths of their own.
_COMPUTED = {"direction": b"forward", "linear_before_reset": 1, "layout": 0, "activations": [b"Sigmoid", b"Tanh"]}
_OTHERWISE = {**_COMPUTED, "linear_before_reset": 0}


def match_gru(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Recognize a GRU of one direction with constant weights."""
    settings = {**_OTHERWISE, **attributes(node)}
    inputs, states = floats(graph, node.input[1], 3), floats(graph, node.input[2], 3)
    biases = floats(graph, node.input[3], 2) if has(node, 3) else None
    if inputs is None or states is None or (has(node, 3) and biases is None) or has(node, 4) or not node.output[0]:
        return None
    if len(states) != 1 or "clip" in settings or any(settings[name] != value for name, value in _COMPUTED.items()):
        return None
    size = states.shape[2]
    own, recurrent = np.split(np.zeros(6 * size, np.float32) if biases is None else biases[0], 2)
    # Update and reset need the sum of both biases; the new state adds its own before it is reset.
    first = own + np.concatenate([recurrent[: 2 * size], np.zeros(size, np.float32)])
    name = f"{node.output[0]}/inputs"
    projection = Layer("SparseMatMul", (), node.input[0], inputs[0], inputs.size, first, name=name)
    initial = node.input[5] if has(node, 5) else ""
    return Layer(
        *("SparseGRU", (node,), name, states[0], states.size, recurrent[2 * size :]),
        residual=initial,
        projection=projection,
    )
