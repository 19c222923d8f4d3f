"""`explain` tells for each layer with weights what the session does with it, and why."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import NETS, onnx_layer, plain_model, sparse_weight
from tiny import Cli

import rigl_compress
from rigl_compress.runtime.explain import explain
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.sparse_runtime_export import export_sparse_runtime

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())


def model_of(node: onnx.NodeProto, shapes: dict[str, Any], weights: dict[str, Any], opset: int = 17) -> bytes:
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph([node], "g", [values[n] for n in values if n != "y"], [values["y"]], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return bytes(model.SerializeToString())


W = sparse_weight(0.95, (300, 300))
LSTM = {"w": np.ones((1, 400, 20), np.float32), "r": sparse_weight(0.9, (400, 100))[None]}
DENSE: dict[str, tuple[bytes, str]] = {
    "few zeros": (onnx_layer(sparse_weight(0.3, (700, 1000))).SerializeToString(), "below "),
    "small": (onnx_layer(sparse_weight(0.9, (2, 3))).SerializeToString(), "too small to gain at any sparsity"),
    "an input": (
        model_of(helper.make_node("Conv", ["x", "w"], ["y"]), {"x": [1, 4, 9, 9], "w": [6, 4, 1, 1], "y": None}, {}),
        "weights are not constant",
    ),
    "overridable": (
        model_of(helper.make_node("MatMul", ["x", "w"], ["y"]), {"x": [3, 300], "w": [300, 300], "y": None}, {"w": W}),
        "callers may override the weights",
    ),
    "a volume": (
        model_of(
            helper.make_node("Conv", ["x", "w"], ["y"]),
            {"x": [1, 4, 5, 5, 5], "y": None},
            {"w": sparse_weight(0.7, (6, 4, 3, 3, 3))},
        ),
        "no sparse kernel for Conv3d",
    ),
    "a bias for each sample": (
        model_of(
            helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
            {"x": [3, 300], "y": None},
            {"w": W, "b": np.ones((3, 300), np.float32)},
        ),
        "the bias is not constant, or differs by sample",
    ),
    "peepholes": (
        model_of(
            helper.make_node("LSTM", ["x", "w", "r", "", "", "", "", "p"], ["y"], hidden_size=100),
            {"x": [5, 1, 20], "y": None},
            {**LSTM, "p": np.ones((1, 300), np.float32)},
        ),
        "no sparse kernel for LSTM with peepholes or coupled gates",
    ),
    "groups": (
        model_of(
            helper.make_node("Conv", ["x", "w"], ["y"], group=4),
            {"x": [1, 64, 14, 14], "y": None},
            {"w": sparse_weight(0.5, (64, 16, 3, 3))},
        ),
        "grouped convolution of 4 groups, below ",
    ),
}


@pytest.mark.parametrize("case", DENSE)
def test_reasons(case: str) -> None:
    model, reason = DENSE[case]
    (row,) = explain(model, 1)
    assert row.kernel == "dense"
    assert row.reason.startswith(reason)


@needs_kernels
@pytest.mark.parametrize("net", NETS)
def test_it_tells_what_the_session_does(net: str) -> None:
    content = plain_model(net).SerializeToString()
    rows = explain(content)
    assert len([row for row in rows if row.kernel.startswith("Sparse")]) >= len(InferenceSession(content).sparse_layers)
    assert all(bool(row.reason) == (row.kernel in ("dense", "DepthwiseConv")) for row in rows)
    weights = {tensor.name for tensor in onnx.load_from_string(content).graph.initializer}
    assert {row.name for row in rows} <= weights


@needs_kernels
def test_sparse_layers(layer: Path) -> None:
    (row,) = rigl_compress.explain(layer)
    assert (row.name, row.operator, row.shape, row.kernel, row.reason) == ("w", "Gemm", (700, 1000), "SparseMatMul", "")
    assert row.density == pytest.approx(0.05, abs=0.01)
    assert row.gain is not None
    assert row.gain > 1


@needs_kernels
def test_files_with_sparse_operators(layer: Path, tmp_path: Path) -> None:
    export_sparse_runtime(layer, tmp_path / "fast.onnx")
    (row,) = explain(tmp_path / "fast.onnx")
    assert (row.name, row.shape, row.kernel, row.gain) == ("w", (700, 1000), "SparseMatMul", None)


@needs_kernels
def test_the_session_mentions_large_sparse_layers_without_a_kernel() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    weight = sparse_weight(0.9, (64, 32, 3, 3, 3))
    model = model_of(node, {"x": [1, 32, 5, 5, 5], "y": None}, {"w": weight})
    with pytest.warns(UserWarning, match=r"stay dense: w \(no sparse kernel for Conv3d\); rc.explain lists all"):
        InferenceSession(model)
    InferenceSession(model)  # warnings are errors: it is said once


def test_the_command_line(layer: Path, cli: Cli) -> None:
    done = cli("inspect", layer, "--runtime")
    assert done.code == 0
    assert "SparseMatMul" in done.out or unavailable_reason()
    assert "layers run on sparse kernels" in done.out
    (row,) = json.loads(cli("inspect", layer, "--runtime", "--json").out)["layers"]
    assert row["name"] == "w"
    assert row["shape"] == [700, 1000]
    assert "leave it out" in cli("inspect", layer, "--runtime", "--png", "plot.png").err
    assert cli("inspect", layer.parent, "--runtime").code == 2
