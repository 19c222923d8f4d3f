"""Sources of old versions and without shapes, and what is refused before the work instead of after it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx_layers import correlated, perceptron, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.exporters.ort_sessions import SessionError
from rigl_compress.onnx_pruning import plain_source
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.onnx_pruning.sparsify_onnx import sparsify_curve
from rigl_compress.runtime.kernel_library import unavailable_reason

X = correlated(200, 32)


def run(folder: Path, model: onnx.ModelProto, **settings: Any) -> Any:
    saved(model, folder / "net.onnx")
    given = {"calibration": {"x": X}, "timing": None, **settings}
    return rc.sparsify_onnx(folder / "net.onnx", folder / "small.onnx", **given)


def old(version: int, opset: int) -> onnx.ModelProto:
    """Return a model whose constants are all inputs, too."""
    model = perceptron()
    model.ir_version = version
    model.opset_import[0].version = opset
    model.graph.node[-1].input.append("b3")
    bias = np.zeros(10, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "b3"))
    for each in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(each.name, 1, list(each.dims)))
    return model


def test_constants_that_are_inputs_by_format_are_pruned(tmp_path: Path) -> None:
    found = run(tmp_path, old(3, 9), encoding="sparse")
    assert [each.name for each in found.layers] == ["w1", "w2", "w3"]
    session = ort.InferenceSession(found.path)
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert session.run(None, {"x": X})[0].shape == (200, 10)


def test_inputs_that_callers_can_replace_are_left_with_a_cure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="drop them from the inputs of the graph"):
        run(tmp_path, old(8, 17))


@pytest.mark.parametrize("settings", [{}, {"encoding": "gap8"}, {"encoding": "sparse", "values": "fp16"}])
def test_an_opset_that_is_too_old_is_refused_first(tmp_path: Path, settings: dict[str, Any]) -> None:
    steps: list[str] = []
    with pytest.raises(InputError, match=r"net\.onnx uses opset 9, .* choose sparse with fp32"):
        run(tmp_path, old(3, 9), listener=lambda what, *_: steps.append(what), **settings)
    assert not steps
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_outputs_without_a_shape(tmp_path: Path) -> None:
    model = perceptron()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    found = run(tmp_path, model)
    assert ort.InferenceSession(found.path).run(None, {"x": X})[0].shape == (200, 10)


def test_a_sparsity_that_errors_are_not_measured_for(tmp_path: Path) -> None:
    saved(perceptron(), tmp_path / "net.onnx")
    config = SparsifyConfig(calibration={"x": X}, timing=None)
    curve = sparsify_curve(tmp_path / "net.onnx", tmp_path / "small.onnx", (0.5, 0.97), config, lambda *_: None)
    with pytest.raises(InputError, match=r"sparsity 0\.97 is more than the largest, 0\.96"):
        next(curve)
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert SparsifyConfig(calibration={"x": X}, sparsity=0.96).density == pytest.approx(0.04)
    assert SparsifyConfig(calibration={"x": X}, sparsity=0.99, allocation="uniform").sparsity == 0.99


@pytest.mark.skipif(bool(unavailable_reason()), reason="needs the kernels")
def test_sparse_operators_that_gain_nothing_are_found_before_layers_are_fitted(tmp_path: Path) -> None:
    steps: list[str] = []
    with pytest.raises(InputError, match=r"no layer of .*net\.onnx would be faster"):
        run(tmp_path, perceptron(), target="sparse-runtime", sparsity=0.1, listener=lambda what, *_: steps.append(what))
    assert not any(each.startswith("pruning") for each in steps)


def test_without_kernels_their_target_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_source, "unavailable_reason", lambda: "they are not here")
    with pytest.raises(InputError, match="they are not here"):
        run(tmp_path, perceptron(), target="sparse-runtime")
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_errors_name_the_file_of_the_user() -> None:
    with (
        pytest.raises(SessionError, match=r"^net\.onnx is bad"),
        plain_source.named(Path("net.onnx"), Path("/tmp/a/p")),
    ):
        raise SessionError("/tmp/a/p is bad")
