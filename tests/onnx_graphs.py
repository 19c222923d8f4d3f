"""ONNX models written by hand, small and readable: operators by name, inputs by shape, constants as arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
Axes = Sequence[int | str]


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """An operator; names of values in one string, `_` for a value that is left out."""
    names = [["" if name == "_" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(operator, *names, name=f"the {operator} of {outputs}", **attributes)


def value(name: str, axes: Axes | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or an output, of any rank without axes."""
    return helper.make_tensor_value_info(name, kind, None if axes is None else list(axes))


def graph(
    nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Axes], constants: Mapping[str, Array], output: str = "y"
) -> onnx.GraphProto:
    """A graph of float inputs with one output of any shape."""
    return helper.make_graph(
        list(nodes),
        "by hand",
        [value(name, axes) for name, axes in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Axes],
    constants: Mapping[str, Array] | None = None,
    output: str = "y",
) -> onnx.ModelProto:
    """A model of such a graph."""
    made = graph(nodes, inputs, constants or {}, output)
    bare = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(bare)  # the checker wants an output to have a shape


def weight(*shape: int, zeros: int = 0, dtype: type = np.float32) -> Array:
    """Ones, with so many zeros at the start."""
    array = np.ones(shape, dtype=dtype)
    array.reshape(-1)[:zeros] = 0
    return array


def floats(**shapes: Sequence[int]) -> dict[str, Array]:
    """Inputs of zeros by name."""
    return {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
