"""Names of weights in exported graphs: torch's exporter renames weights that it transposes or reorders."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import nn

Array = NDArray[Any]
_RECURRENT = ("GRU", "LSTM", "RNN")
_INPUTS = {1: "weight_ih", 2: "weight_hh", 3: "bias"}  # inputs of the recurrent operators


def restore_names(model: onnx.ModelProto, network: nn.Module) -> None:
    """Rename initializers to the parameters that they hold: the same, transposed (`.T`), or with gates reordered."""
    taken = {tensor.name for tensor in model.graph.initializer}
    weights = {name: tensor.detach().numpy() for name, tensor in network.state_dict().items() if name not in taken}
    new = {**dict(_moved(model, weights)), **dict(_recurrent(model, network))}
    rename(model, {old: name for old, name in new.items() if name not in taken})


def _moved(model: onnx.ModelProto, weights: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
    """Yield initializers and their parameters; parameters whose elements are all equal are skipped as ambiguous."""
    wanted = {name: array for name, array in weights.items() if array.size > 1 and np.any(array != array.flat[0])}
    for tensor in model.graph.initializer:
        found = numpy_helper.to_array(tensor)
        for name, array in wanted.items():
            if _same(found, array) or _same(found, array.T):
                yield tensor.name, name if _same(found, array) else f"{name}.T"
                del wanted[name]
                break


def _recurrent(model: onnx.ModelProto, network: nn.Module) -> Iterator[tuple[str, str]]:
    """Pair recurrent operators and layers in their order; pairs with different values are skipped."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type in _RECURRENT]
    layers = [
        (path, module, number)
        for path, module in network.named_modules()
        if isinstance(module, nn.RNNBase)
        for number in range(module.num_layers)
    ]
    for node, (path, module, number) in zip(nodes, layers, strict=False):
        for index, kind in _INPUTS.items():
            old = node.input[index] if index < len(node.input) else ""
            if old in tensors and _same(np.sort(tensors[old], axis=None), _layer(module, kind, number)):
                yield old, f"{path}.{kind}_l{number}" if path else f"{kind}_l{number}"


def _layer(module: nn.RNNBase, kind: str, number: int) -> Array:
    """Return the sorted values of all parameters of a kind: both directions, and both biases."""
    names = [f"{part}_l{number}{way}" for part in _parts(kind) for way in ("", "_reverse")]
    arrays = [getattr(module, name).detach().numpy().reshape(-1) for name in names if hasattr(module, name)]
    return np.sort(np.concatenate(arrays)) if arrays else np.zeros(0, dtype=np.float32)


def _parts(kind: str) -> tuple[str, ...]:
    return ("bias_ih", "bias_hh") if kind == "bias" else (kind,)


def _same(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)


def rename(model: onnx.ModelProto, new: Mapping[str, str]) -> None:
    """Rename values of the main graph.

    >>> text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {y = Neg(x)}'
    >>> model = onnx.parser.parse_model(text)
    >>> rename(model, {"x": "input"})
    >>> model.graph.input[0].name, model.graph.node[0].input
    ('input', ['input'])
    """
    graph = model.graph
    for part in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        part.name = new.get(part.name, part.name)
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = new.get(name, name)
        for index, name in enumerate(node.output):
            node.output[index] = new.get(name, name)
