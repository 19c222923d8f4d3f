"""Weights in branches and bodies are encoded like all others, and come back with the same outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import sparse_weight

from rigl_compress.exporters.onnx_export import Layout, reencode
from rigl_compress.exporters.sparsify import encoding_names
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.runtime.session import InferenceSession

FLOAT = TensorProto.FLOAT
X = np.linspace(-1, 1, 2 * 40, dtype=np.float32).reshape(2, 40)


def branch(name: str, seed: int, *, constant: bool = False, nested: bool = False) -> onnx.GraphProto:
    """A graph that multiplies x with a weight of its own, which has the same name in all of them."""
    weight = numpy_helper.from_array(sparse_weight(0.9, (40, 40), seed), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], [name])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    if nested:
        inner = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], [f"{name}n"])],
            "nested",
            [],
            [helper.make_tensor_value_info(f"{name}n", FLOAT, [2, 40])],
        )
        nodes = [helper.make_node("If", ["c"], [name], then_branch=inner, else_branch=inner)]
    outputs = [helper.make_tensor_value_info(name, FLOAT, [2, 40])]
    return helper.make_graph(nodes, name, [], outputs, [] if constant else [weight])


def model_of(*nodes: onnx.NodeProto, functions: Any = (), initializers: Any = ()) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", FLOAT, [2, 40]), helper.make_tensor_value_info("c", 9, [])]
    outputs = [helper.make_tensor_value_info("y", FLOAT, [2, 40])]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(each.domain, 1) for each in functions)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def branching() -> onnx.ModelProto:
    return model_of(helper.make_node("If", ["c"], ["y"], then_branch=branch("p", 1), else_branch=branch("q", 2)))


def constants() -> onnx.ModelProto:
    graphs = (branch("p", 1, constant=True), branch("q", 2, constant=True))
    return model_of(helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1]))


def nested() -> onnx.ModelProto:
    graphs = (branch("p", 1, nested=True), branch("q", 2, nested=True))
    return model_of(helper.make_node("If", ["c"], ["y"], then_branch=graphs[0], else_branch=graphs[1]))


def looping() -> onnx.ModelProto:
    weight = numpy_helper.from_array(sparse_weight(0.9, (40, 40)), "w")
    values = [helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9), ("on", 9))]
    states = [helper.make_tensor_value_info(name, FLOAT, [2, 40]) for name in ("h", "k")]
    body = helper.make_graph(
        [helper.make_node("MatMul", ["h", "w"], ["k"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [values[0], values[1], states[0]],
        [values[2], states[1]],
        [weight],
    )
    times = numpy_helper.from_array(np.array(3), "times")
    return model_of(helper.make_node("Loop", ["times", "c", "x"], ["y"], body=body), initializers=[times])


MODELS = {"if": branching, "constants": constants, "nested": nested, "loop": looping}


def run(path: Path, opened: Any = ort.InferenceSession) -> list[Any]:
    session = opened(str(path), providers=["CPUExecutionProvider"])
    return [session.run(None, {"x": X, "c": np.array(c)})[0] for c in (True, False)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("encoding", "values"), [*((each, "fp32") for each in encoding_names()), ("compact", "int8")])
def test_inner_weights_are_encoded(name: str, encoding: str, values: str, tmp_path: Path) -> None:
    source = tmp_path / "in.onnx"
    onnx.save(MODELS[name](), source)
    inputs = {"x": X, "c": np.array(True)}
    exported = reencode(source, tmp_path / "out.onnx", Layout(encoding, values), inputs=inputs)
    large = [row for row in exported.tensors if row.total == 1600]
    assert len(large) == (1 if name == "loop" else 2)
    assert all((row.encoding == "dense") == (encoding == "dense") for row in large)
    if encoding != "dense":
        assert exported.bytes < source.stat().st_size / 2
    back = reencode(exported.path, tmp_path / "back.onnx", Layout("dense"), inputs=inputs)
    for path in (exported.path, back.path):
        for opened in (ort.InferenceSession, InferenceSession):
            found = run(path, opened)
            assert np.allclose(found, run(source), rtol=0, atol=VALUES[values].tolerance * np.abs(found).max())


@pytest.mark.filterwarnings("default")
def test_weights_of_functions_are_left_and_it_is_said(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(sparse_weight(0.9, (40, 40)), "w")
    nodes = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("MatMul", ["x", "w"], ["y"])]
    function = helper.make_function("own", "Layer", ["x"], ["y"], nodes, [helper.make_opsetid("", 17)])
    model = model_of(helper.make_node("Layer", ["x"], ["y"], domain="own"), functions=[function])
    onnx.save(model, tmp_path / "in.onnx")
    with pytest.warns(UserWarning, match="^1 tensors with 6,4.. bytes in sub-graphs or functions"):
        reencode(tmp_path / "in.onnx", tmp_path / "out.onnx", Layout("compact"))
