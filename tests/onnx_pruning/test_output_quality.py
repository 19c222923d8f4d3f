"""Figures of how near the outputs of two models are."""

from typing import Any

import numpy as np
import onnx
import pytest

from rigl_compress.onnx_pruning.output_quality import compare, relative_error, unchanged

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


def test_integers_alone_have_an_agreement_and_no_signal_to_noise() -> None:
    wanted, got = np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])
    found = compare([[wanted]], [[got]], NOTHING)
    assert (found.snr, found.error, found.cosine, found.agreement) == (None, None, None, 0.75)
    assert unchanged([[wanted]], [[wanted]])
    assert not unchanged([[wanted]], [[got]])
    assert compare([[wanted]], [[got[:2]]], NOTHING).agreement is None


def test_floats_of_zero_have_no_signal_to_noise() -> None:
    assert compare([batch(0.0)], [batch(1.0)], NOTHING).snr is None
    assert not unchanged([batch(0.0)], [batch(1.0)])


def test_values_that_are_not_finite_are_left_out_and_counted() -> None:
    wanted = np.array([[1.0, 2.0, 0.0], [np.nan, 1.0, 1.0], [np.nan, np.nan, np.nan]])
    got = np.array([[2.0, 4.0, 0.0], [7.0, 1.0, 0.0], [1.0, 2.0, 3.0]])
    found = compare([[wanted]], [[got]], NOTHING)
    assert found.cosine == pytest.approx((1 + 0.5**0.5) / 2)
    assert (found.not_finite, found.values) == (4, 9)
    assert found.agreement == 1.0  # of the one sample that has a largest value
    broken = compare([[np.ones((2, 2))]], [[np.array([[1.0, 1.0], [np.inf, 1.0]])]], NOTHING)
    assert broken.cosine == pytest.approx(0.5)
