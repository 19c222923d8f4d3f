"""Settings as Python callers pass them: what is taken, and what is said about the rest."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_layers import correlated, perceptron, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": "0.5"}, "sparsity is '0.5' of type str, expected a share"),
        ({"sparsity": True}, "sparsity is True of type bool"),
        ({"budget": 2}, "budget is 2 of type int, expected text such as 'speedup=2'"),
        ({"samples": "many"}, "samples is 'many' of type str, expected a whole number"),
        ({"calibration": [1, 2]}, "expected a path, or arrays by the names of the inputs"),
        ({"dense": 3}, "expected patterns"),
        ({"normalize": "imagnet"}, "did you mean 'imagenet'"),
        ({"shapes": "x=1,2"}, "expected shapes by the names"),
    ],
)
def test_values_of_other_types(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SparsifyConfig(**settings)


def test_one_pattern_is_no_list_of_letters() -> None:
    assert SparsifyConfig(dense="w1").dense == ("w1",)  # type: ignore[arg-type]
    assert SparsifyConfig(dense=["w1", "w2"]).dense == ("w1", "w2")  # type: ignore[arg-type]


def test_arrays_are_samples_like_those_of_a_file(tmp_path: Path) -> None:
    saved(perceptron(), tmp_path / "net.onnx")
    x = correlated(80, 32)
    np.savez(tmp_path / "data.npz", x=x)
    for name, samples in (("a.onnx", tmp_path / "data.npz"), ("b.onnx", {"x": x})):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / name, calibration=samples, timing=None)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    with pytest.raises(InputError, match="the calibration data: 'x' is float64, the model takes float32"):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "c.onnx", calibration={"x": x.astype(float)})
    with pytest.raises(InputError, match="no input 'z'"):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "c.onnx", calibration={"z": x})


def test_keywords_count_beside_a_config(tmp_path: Path) -> None:
    saved(perceptron(), tmp_path / "net.onnx")
    found = rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "a.onnx", SparsifyConfig(timing=None), sparsity=0.8)
    assert found.sparsity == pytest.approx(0.8, abs=0.01)
