"""Packed projections of attention: where the exporter splits them in each run, their parts become constants.

Queries of one sequence and keys of another are multiplied with different rows of one matrix. Runtimes look for layers
with constant weights, and the sparse kernels find none behind a Split and a Transpose.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.protobuf_walk import graphs_of

Array = NDArray[Any]
_PACKED = ("in_proj_weight", "in_proj_bias")
_PARTS = {2: ("q", "kv"), 3: ("q", "k", "v")}  # keys and values of the same sequence stay together


def split_packed_projections(model: onnx.ModelProto) -> None:
    """Replace the splits of packed projections, and the transpositions of their parts, by constants."""
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in [each for each in graph.node if _is_packed(each, constants)]:
        parts = _parts(node, numpy_helper.to_array(constants[node.input[0]]), constants)
        for name, output, array in zip(_PARTS[len(parts)], list(node.output), parts, strict=True):
            _make_constant(graph, output, f"{node.input[0]}.{name}", array)
        graph.node.remove(node)
    used = {name for each in graphs_of(graph) for node in each.node for name in node.input}
    kept = used | {value.name for value in graph.output}
    delete(graph.initializer, lambda tensor: tensor.name not in kept and tensor.name.endswith(_PACKED))


def _is_packed(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]) -> bool:
    if node.op_type != "Split" or len(node.output) not in _PARTS or not node.input[0].endswith(_PACKED):
        return False
    return all(name in constants for name in node.input)


def _parts(node: onnx.NodeProto, packed: Array, constants: dict[str, onnx.TensorProto]) -> list[Array]:
    """Return the outputs of a Split: of the sizes in its second input, else of equal size."""
    axis = next((helper.get_attribute_value(each) for each in node.attribute if each.name == "axis"), 0)
    if len(node.input) == 1:
        return np.array_split(packed, len(node.output), axis)
    sizes = numpy_helper.to_array(constants[node.input[1]])
    return np.split(packed, np.cumsum(sizes)[:-1], axis)


def _make_constant(graph: onnx.GraphProto, value: str, name: str, array: Array) -> None:
    """Store a part under a new name, transposed if it is only read so."""
    readers = [node for node in graph.node if value in node.input]
    if len(readers) == 1 and readers[0].op_type == "Transpose" and array.ndim == 2:
        value, name, array = readers[0].output[0], f"{name}.T", array.T
        graph.node.remove(readers[0])
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    for node in graph.node:
        for index, each in enumerate(node.input):
            node.input[index] = name if each == value else each
