"""Inputs from which weights cannot be determined: they are damped or go by magnitude, which is said in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper
from onnx_layers import correlated, draw, model_of, perceptron, saved

import rigl_compress as rc
from rigl_compress.onnx_pruning.one_shot_pruning import PrunedWeight, notes_of
from rigl_compress.onnx_pruning.sparsify_report import SparsifyReport


def run(folder: Path, x: NDArray[Any], **settings: Any) -> SparsifyReport:
    saved(perceptron(), folder / "net.onnx")
    given = {"calibration": {"x": x}, "samples": len(x), "timing": None, "overwrite": True, **settings}
    found = rc.sparsify_onnx(folder / "net.onnx", folder / "small.onnx", **given)
    assert all(each.error is None or 0 <= each.error < 10 for each in found.layers), found.layers
    assert np.isfinite(found.quality.snr)
    return found


ALIKE = correlated(300, 32)
ALIKE[:, 5] = ALIKE[:, 6] - ALIKE[:, 7]
STILL = correlated(300, 32)
STILL[:, 5] = 3
ZERO = correlated(300, 32)
ZERO[:, 20:] = 0
CASES = {
    "rank two": draw(300, 2) @ draw(2, 32),
    "a sum of others": ALIKE,
    "a constant": STILL,
    "zeros": ZERO,
}


@pytest.mark.parametrize("allocation", ["error", "uniform"])
@pytest.mark.parametrize("case", CASES)
def test_inputs_that_depend_on_each_other_are_damped(tmp_path: Path, case: str, allocation: str) -> None:
    found = run(tmp_path, CASES[case], allocation=allocation)
    assert found.layers[0].how == "obs, singular: inputs that do not vary or depend on each other, damped"
    lines = [each for each in found.notes if "damped" in each]
    assert len(lines) == 1
    assert lines[0].startswith("inputs that do not vary or depend on each other, damped: w1")


def test_inputs_that_determine_weights_are_not_noted(tmp_path: Path) -> None:
    found = run(tmp_path, correlated(300, 32))
    assert not found.notes
    assert {each.how for each in found.layers} == {"obs"}


def test_channels_that_pruning_emptied_are_not_noted(tmp_path: Path) -> None:
    found = run(tmp_path, correlated(300, 32), sparsity=0.95)
    assert found.facts["dead_channels"]["w1"]
    assert not any("damped" in each for each in found.notes)


@pytest.mark.parametrize(("value", "reason"), [(0.0, "its inputs are all zero"), (0.1, "its inputs do not vary")])
@pytest.mark.parametrize("allocation", ["error", "uniform"])
def test_inputs_that_are_all_the_same_leave_magnitude(
    tmp_path: Path, value: float, reason: str, allocation: str
) -> None:
    found = run(tmp_path, np.full((300, 32), value, np.float32), allocation=allocation)
    kind, _, why = found.layers[0].how.partition(": ")
    assert (kind in ("magnitude", "dense"), why, found.layers[0].error) == (True, reason, 0.0)
    assert sum("pruned by magnitude" in each for each in found.notes) == 1
    assert found.quality.snr > 60  # biases took up what was lost


@pytest.mark.parametrize("scale", [1e-25, 1e-15, 1e19])
def test_errors_do_not_depend_on_the_scale_of_inputs(tmp_path: Path, scale: float) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [["n", 32]], {"w": draw(32, 20)})
    saved(model, tmp_path / "one.onnx")
    found = [
        rc.sparsify_onnx(
            tmp_path / "one.onnx", tmp_path / "small.onnx", calibration={"x": x}, overwrite=True, timing=None
        ).layers[0]
        for x in (correlated(300, 32), (correlated(300, 32).astype(float) * scale).astype(np.float32))
    ]
    assert found[1].how == found[0].how == "obs"
    assert found[1].error == pytest.approx(found[0].error, rel=1e-3)


def test_a_layer_that_loses_nothing_is_not_said_to_be_pruned(tmp_path: Path) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [["n", 200]], {"w": draw(200, 30)})
    saved(model, tmp_path / "net.onnx")
    x = draw(8, 200)
    found = rc.sparsify_onnx(
        tmp_path / "net.onnx", tmp_path / "a.onnx", calibration={"x": x}, sparsity=0.0, timing=None
    )
    assert found.layers[0].how == "dense: 6 samples for 200 columns"
    assert not any("by magnitude" in each for each in found.notes)


def test_many_layers_are_one_line() -> None:
    how = "obs, singular: 6 samples for 200 columns, damped"
    layers = [PrunedWeight(f"w{number}", "MatMul", (20, 20), 200, 0.1, how) for number in range(20)]
    assert notes_of(layers) == ["fewer samples than columns, damped: w0, w1, w2 and 17 more; more samples help"]
