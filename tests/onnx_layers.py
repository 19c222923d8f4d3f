"""Small ONNX models by hand, for tests of `sparsify`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


def model_of(
    nodes: Sequence[onnx.NodeProto], shapes: Sequence[Sequence[int | str]], weights: dict[str, Array], output: str = "y"
) -> onnx.ModelProto:
    """Return a model with the inputs x (, x1, …) of some shapes and one output."""
    inputs = [
        helper.make_tensor_value_info(f"x{number or ''}", onnx.TensorProto.FLOAT, shape)
        for number, shape in enumerate(shapes)
    ]
    given = [numpy_helper.from_array(each, name) for name, each in weights.items()]
    made = onnx.ValueInfoProto(name=output)
    made.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    graph = helper.make_graph(list(nodes), "g", inputs, [made], given)
    made_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    known = onnx.shape_inference.infer_shapes(made_model).graph.output[0].type
    made_model.graph.output[0].type.CopyFrom(known)  # the checker wants a shape
    return made_model


def draw(*shape: int, seed: int = 0) -> Array:
    """Return normal random numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def correlated(count: int, columns: int, seed: int = 0) -> Array:
    """Return samples whose columns depend on a few hidden factors, as the inputs of layers do."""
    rng = np.random.default_rng(seed)
    hidden, mixing = (
        rng.normal(size=(count, columns // 4)),
        np.random.default_rng(99).normal(size=(columns // 4, columns)),
    )
    return (hidden @ mixing + 0.3 * rng.normal(size=(count, columns)) + 0.5).astype(np.float32)


def perceptron(inputs: int = 32, hidden: int = 64, outputs: int = 10) -> onnx.ModelProto:
    """Return a network of three layers: Gemm, MatMul with Add, Gemm without bias."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h1"], transB=1),
        helper.make_node("Relu", ["h1"], ["r1"]),
        helper.make_node("MatMul", ["r1", "w2"], ["m2"]),
        helper.make_node("Add", ["m2", "b2"], ["h2"]),
        helper.make_node("Relu", ["h2"], ["r2"]),
        helper.make_node("Gemm", ["r2", "w3"], ["y"]),
    ]
    weights = {
        "w1": draw(hidden, inputs, seed=1) / np.float32(inputs**0.5),
        "b1": draw(hidden, seed=2),
        "w2": draw(hidden, hidden, seed=3) / np.float32(hidden**0.5),
        "b2": draw(hidden, seed=4),
        "w3": draw(hidden, outputs, seed=5) / np.float32(hidden**0.5),
    }
    return model_of(nodes, [["n", inputs]], weights)


def saved(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model to a file."""
    path.write_bytes(model.SerializeToString())
    return path
