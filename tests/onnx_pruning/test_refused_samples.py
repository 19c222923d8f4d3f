"""Samples that fit the declared axes, and that ONNX Runtime rejects when it runs: errors of one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_layers import correlated, draw, model_of, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.exporters.ort_sessions import SessionError

PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])
SUM = [helper.make_node("Add", ["x", "x1"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]


@pytest.mark.parametrize(
    ("model", "arrays"),
    [
        (model_of([PRODUCT], [["n", "k"]], {"w": draw(32, 16)}), {"x": draw(40, 30)}),
        (model_of(SUM, [["n", 32], ["n", 32]], {"w": draw(32, 16)}), {"x": draw(40, 32), "x1": draw(30, 32)}),
    ],
)
def test_samples_that_do_not_fit(tmp_path: Path, model: Any, arrays: dict[str, Any]) -> None:
    saved(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(SessionError, match=r"does not run the model on samples of x \[\d+, 3\d\]") as raised:
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", calibration=tmp_path / "data.npz")
    assert "\n" not in str(raised.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz", "net.onnx"]


def test_random_inputs_that_do_not_fit(tmp_path: Path) -> None:
    saved(model_of([PRODUCT], [["n", "k"]], {"w": draw(32, 16)}), tmp_path / "net.onnx")
    with pytest.raises(SessionError, match="pass calibration data that fit it"):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", shapes={"x": (1, 30)}, timing=None)


def test_an_index_out_of_range_in_some_sample(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gather", ["table", "i"], ["g"]), helper.make_node("MatMul", ["g", "w"], ["y"])]
    arrays = [numpy_helper.from_array(each, name) for name, each in (("table", draw(10, 32)), ("w", draw(32, 16)))]
    given = [helper.make_tensor_value_info("i", TensorProto.INT64, ["n", 4])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 16])]
    graph = helper.make_graph(nodes, "g", given, made, arrays)
    saved(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx")
    indices = np.zeros((80, 4), np.int64)
    for wrong in (slice(None), slice(3, 4)):  # of all samples, and of one among those to which layers are fitted
        indices[wrong] = 99
        np.savez(tmp_path / "data.npz", i=indices)
        with pytest.raises(SessionError, match="ONNX Runtime does not run the model on") as raised:
            rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", calibration=tmp_path / "data.npz")
        assert "\n" not in str(raised.value)
        indices[:] = 0


def test_messages_are_of_this_command(tmp_path: Path) -> None:
    saved(model_of([PRODUCT], [["n", "k"]], {"w": draw(32, 16)}), tmp_path / "net.onnx")
    with pytest.raises(InputError, match=r"--shape x=1,N, or pass --calibration FILE\.npz"):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", timing=None)


def test_shapes_are_refused_beside_arrays(tmp_path: Path) -> None:
    saved(model_of([PRODUCT], [["n", 32]], {"w": draw(32, 16)}), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(40, 32))
    settings: dict[str, Any] = {"calibration": tmp_path / "data.npz", "timing": None}
    with pytest.raises(InputError, match="leave out --shape"):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", shapes={"x": (1, 32)}, **settings)
