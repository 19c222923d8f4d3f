"""Figures of how near the outputs of two models are."""

from typing import Any

import numpy as np
import onnx
import pytest

from rigl_compress.onnx_pruning.output_quality import compare, relative_error

NOTHING = onnx.ModelProto(graph=onnx.GraphProto(output=[onnx.ValueInfoProto(name="y")]))


def batch(*values: float) -> list[np.ndarray[Any, Any]]:
    return [np.full((2, 3), value) for value in values]


@pytest.mark.parametrize(
    ("wanted", "got", "error"),
    [
        ([batch(1.0)], [batch(1.1)], 0.01),
        # A batch without anything to find has outputs next to zero: its relative error says nothing.
        ([batch(1.0), batch(1e-9)], [batch(1.1), batch(1e-3)], 0.01),
        # Outputs of different scales count alike.
        ([batch(1.0, 1e-4)], [batch(1.0, 1.1e-4)], 0.005),
        ([batch(0.0)], [batch(1.0)], 0.0),
        ([batch(1.0)], [batch(np.inf)], 1e30),
        ([batch(1.0)], [[np.ones((2, 4))]], 1.0),
        ([[np.ones(3, np.int64)]], [[np.zeros(3, np.int64)]], 0.0),
        ([[np.array([1.0, np.nan])]], [[np.array([1.1, 5.0])]], 0.01),
    ],
)
def test_errors_are_relative_to_all_batches_of_an_output(wanted: Any, got: Any, error: float) -> None:
    assert relative_error(wanted, got) == pytest.approx(error, rel=1e-3)


def test_signal_to_noise_is_that_of_the_error() -> None:
    found = compare([batch(1.0), batch(1e-9)], [batch(1.1), batch(1e-3)], NOTHING)
    assert found.snr == pytest.approx(20, abs=0.01)
    assert found.error == pytest.approx(0.01, rel=1e-3)
    assert found.samples == 4
