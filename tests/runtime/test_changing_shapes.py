"""Shapes that change at run time, empty rows and columns, files changed by hand: right numbers, never a crash."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx_graphs import value
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import session as module
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import DOMAIN, rewrite
from rigl_compress.runtime.session import InferenceSession

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
CPU = ["CPUExecutionProvider"]
TOLERANCE = 1e-5


def expected(model: Path | bytes, inputs: dict[str, Array]) -> list[Array]:
    found: list[Array] = ort.InferenceSession(model, providers=CPU).run(None, inputs)
    return found


def model_of(nodes: list[Any], shapes: dict[str, Any], weights: dict[str, Array]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "g",
        [value(name, shape) for name, shape in shapes.items() if name != "y"],
        [value("y", shapes["y"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = made.SerializeToString()
    return content


def residual_net() -> bytes:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "r"], ["y"]),
    ]
    shapes = {"x": ["n", 4, 9, 9], "r": ["n", 6, 9, 9], "y": ["n", 6, 9, 9]}
    return model_of(nodes, shapes, {"w": sparse_weight(0.7, (6, 4, 3, 3))})


@pytest.mark.usefixtures("every_layer_sparse")
def test_a_residual_that_turns_out_to_be_smaller() -> None:
    rng, model = np.random.default_rng(0), residual_net()
    session = InferenceSession(model)
    assert session.sparse_layers == ("y",)
    fitting = {"x": rng.random((2, 4, 9, 9), np.float32), "r": rng.random((2, 6, 9, 9), np.float32)}
    assert largest_difference(session.run(None, fitting), expected(model, fitting)) < TOLERANCE
    assert session.sparse_layers == ("y",)
    smaller = {**fitting, "r": fitting["r"][:1]}
    with pytest.warns(UserWarning, match="the residual does not have the shape of the output") as warned:
        found = [session.run(None, smaller) for _ in range(2)]
    assert len(warned) == 1
    assert all(largest_difference(each, expected(model, smaller)) == 0 for each in found)
    assert session.sparse_layers == ()
    assert largest_difference(session.run(None, fitting), expected(model, fitting)) == 0


@pytest.mark.usefixtures("every_layer_sparse")
def test_what_is_wrong_for_onnx_runtime_too_is_its_own_error() -> None:
    session = InferenceSession(residual_net())
    zeros = np.zeros((2, 6, 9, 9), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bad in ({"x": zeros, "r": zeros}, {"x": zeros[:, :4]}, {"x": zeros[:, :4, :4], "r": zeros}):
            with pytest.raises(Exception, match=r"(?i)dimensions|required inputs"):
                session.run(None, bad)
    assert session.sparse_layers == ("y",), "the next inputs may be good again"


def test_a_file_with_sparse_operators_has_nothing_to_fall_back_on(layer: Path) -> None:
    model = rewrite(onnx.load(layer), lambda *_: True).model
    model.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = InferenceSession(model.SerializeToString(), options)
    with pytest.raises(Exception, match="does not have the columns of the packed weights"):
        session.run(None, {"x": np.ones((1, 61), dtype=np.float32)})


CHANGING: dict[str, Callable[[], tuple[bytes, list[dict[str, Array]]]]] = {
    "batches": lambda: (
        onnx_layer(sparse_weight(0.8, (40, 60))).SerializeToString(),
        [{"x": np.random.default_rng(n).random((n, 60), np.float32)} for n in (1, 64, 0, 3, 1, 200, 7, 8)],
    ),
    "ranks": lambda: (
        model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"x": None, "y": None},
            {"w": sparse_weight(0.8, (30, 20))},
        ),
        [{"x": np.ones(shape, np.float32)} for shape in [(30,), (4, 30), (2, 3, 30), (2, 0, 30), (1, 1, 1, 30), (30,)]],
    ),
    "images": lambda: (
        model_of(
            [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1])],
            {"x": ["n", 4, "h", "w_"], "y": ["n", 6, "p", "q"]},
            {"w": sparse_weight(0.7, (6, 4, 3, 3))},
        ),
        [
            {"x": np.random.default_rng(0).random((n, 4, h, w), np.float32)}
            for n, h, w in [(1, 9, 9), (3, 1, 1), (0, 9, 9), (2, 40, 3), (1, 16, 16), (1, 9, 9)]
        ],
    ),
}


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("case", CHANGING)
def test_sizes_that_change_from_run_to_run(case: str) -> None:
    model, runs = CHANGING[case]()
    session = InferenceSession(model)
    for inputs in runs:
        assert largest_difference(session.run(None, inputs), expected(model, inputs)) < TOLERANCE
    assert session.sparse_layers == ("y",)


# Patterns with empty rows and columns.


def emptied(shape: tuple[int, ...], pattern: str) -> Array:
    """Weights [outputs, inputs, ...] without some of their connections."""
    weight = sparse_weight(0.3, shape)
    places = {
        "rows": np.s_[1::2],
        "columns": np.s_[:, ::2],
        "first and last": np.s_[[0, -1]],
        "all": np.s_[:],
        "all but one": np.s_[:],
    }
    weight[places[pattern]] = 0
    if pattern == "all but one":
        weight.reshape(-1)[weight.size // 2] = 3
    return weight


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("pattern", ["rows", "columns", "first and last", "all", "all but one"])
@pytest.mark.parametrize("batch", [1, 9])
def test_empty_rows_and_columns(pattern: str, batch: int) -> None:
    rng = np.random.default_rng(0)
    conv, gemm = emptied((20, 12, 3, 3), pattern), emptied((24, 30), pattern)
    gru = np.stack([emptied((30, 10), pattern), emptied((30, 10), pattern)])
    cases = [
        (
            model_of(
                [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])],
                {"x": ["n", 12, 8, 8], "y": ["n", 20, 8, 8]},
                {"w": conv},
            ),
            (batch, 12, 8, 8),
        ),
        (
            model_of(
                [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
                {"x": ["n", 30], "y": ["n", 24]},
                {"w": gemm, "b": np.arange(24, dtype=np.float32)},
            ),
            (batch, 30),
        ),
        (
            model_of(
                [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=10, direction="bidirectional")],
                {"x": [4, "n", 10], "y": [4, 2, "n", 10]},
                {"w": gru, "r": gru},
            ),
            (4, batch, 10),
        ),
    ]
    for model, shape in cases:
        session, inputs = InferenceSession(model), {"x": rng.standard_normal(shape).astype(np.float32)}
        assert session.sparse_layers == ("y",)
        assert largest_difference(session.run(None, inputs), expected(model, inputs)) < TOLERANCE


# Files that were changed by hand.


def change_attribute(name: str, values: list[int]) -> Callable[[onnx.NodeProto], None]:
    def change(node: onnx.NodeProto) -> None:
        kept = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, values)] if values else kept)

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_attribute("kernel_shape", [0, 3]),
        change_attribute("kernel_shape", [3]),
        change_attribute("kernel_shape", [2**40, 2**40]),
        change_attribute("kernel_shape", [5, 5]),
        change_attribute("kernel_shape", []),
        change_attribute("strides", [0, 1]),
        change_attribute("dilations", [-1, 1]),
        change_attribute("pads", [-1, 0, 0, 0]),
        change_attribute("pads", [2**62, 0, 0, 0]),
        lambda node: node.input.pop(),
    ],
)
def test_attributes_that_make_no_sense(change: Callable[[onnx.NodeProto], None]) -> None:
    model = rewrite(onnx.load_from_string(residual_net()), lambda *_: True).model
    (node,) = (each for each in model.graph.node if each.domain == DOMAIN)
    change(node)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    module.register(options)
    inputs = {"x": np.ones((2, 4, 9, 9), np.float32), "r": np.ones((2, 6, 9, 9), np.float32)}
    opened = None
    with suppress(Exception):  # that it tells what is wrong is seen elsewhere; here the process must live
        opened = ort.InferenceSession(model.SerializeToString(), options, providers=CPU)
    if opened is not None:
        assert opened.run(None, inputs)[0].shape == (2, 6, 9, 9)
