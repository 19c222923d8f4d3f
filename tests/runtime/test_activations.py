"""Activations and layer normalization in the kernels, against NumPy in double precision."""

from math import erf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import ACTIVATIONS, Conv, Depthwise, MatMul, Window, kernel_sets
from rigl_compress.runtime.norm_kernel import LayerNorm

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
Array = NDArray[Any]
SETS = kernel_sets() if not unavailable_reason() else []
NAMES = ACTIVATIONS[1:]
# Dense near zero, and out to where all of them are flat or straight.
WIDE = np.concatenate([np.linspace(-20, 20, 20_001), *(sign * np.logspace(-8, 3, 500) for sign in (-1, 1))])


def activated(name: str, x: Array) -> Array:
    x = x.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-np.clip(x, -700, 700)))
    cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    found = {
        "": x,
        "gelu": x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2,
        "gelu-tanh": x * (1 + np.tanh(cubic)) / 2,
        "silu": x * sigmoid,
        "sigmoid": sigmoid,
        "tanh": np.tanh(x),
        "hard-swish": x * np.clip(x / 6 + 0.5, 0, 1),
    }
    return found[name]


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("name", NAMES)
def test_accurate_to_the_last_bits(kernels: str, name: str) -> None:
    x = WIDE.astype(np.float32)[:, None]
    found, expected = MatMul(np.ones((1, 1), np.float32), kernels, name)(x), activated(name, x)
    assert np.max(np.abs(found - expected) / np.maximum(1, np.abs(expected))) < 3e-7


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch", [1, 5])
def test_not_a_number_stays_and_infinity_is_no_accident(kernels: str, name: str, batch: int) -> None:
    x = np.ones((batch, 3), np.float32)
    x[0] = [np.nan, np.inf, 1]
    with np.errstate(invalid="ignore"):
        y = MatMul(np.eye(3, dtype=np.float32), kernels, name)(x)
    assert np.isnan(y[0, 0])
    assert y[0, 1] == (1 if name in ("sigmoid", "tanh") else np.inf)
    assert np.isfinite(y[0, 2])
    assert np.isfinite(y[1:]).all()


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    batch=st.sampled_from([1, 2, 7, 16, 33, 130]),
    by_column=st.sampled_from(["", "x", "y", "xy"]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_products(kernels: str, name: str, sizes: Any, batch: int, by_column: str, threads: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal(sizes).astype(np.float32) * (rng.random(sizes) < 0.3)
    x, bias = rng.standard_normal((batch, sizes[1])).astype(np.float32), rng.standard_normal(sizes[0])
    given_bias = bias.astype(np.float32)
    found = MatMul(matrix, kernels, name)(x, given_bias, by_column=by_column, threads=threads)
    expected = activated(name, x.astype(np.float64) @ matrix.T + given_bias)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 7, 9, 16])
def test_images(kernels: str, name: str, size: int) -> None:
    rng = np.random.default_rng(size)
    x = rng.standard_normal((2, 6, size, size)).astype(np.float32)
    weight = rng.standard_normal((9, 6, 1, 1)).astype(np.float32) * (rng.random((9, 6, 1, 1)) < 0.5)
    expected = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], x)
    residual = rng.standard_normal(expected.shape).astype(np.float32)
    found = Conv(weight, None, kernels, name)(x, None, residual, threads=2)
    np.testing.assert_allclose(found, activated(name, expected + residual), rtol=1e-5, atol=1e-5)
    filters = rng.standard_normal((6, 1, 1, 1)).astype(np.float32)
    expected = activated(name, x * filters[:, 0])
    found = Depthwise(filters, Window(groups=6), kernels, name)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(1, 150),
    rows=st.integers(0, 9),
    more=st.tuples(st.booleans(), st.booleans()),
    shift=st.sampled_from([0.0, 100.0]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_layer_norm(
    kernels: str, size: int, rows: int, more: tuple[bool, bool], shift: float, threads: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = (shift + rng.standard_normal((rows, size))).astype(np.float32)
    scale, bias = rng.standard_normal((2, size)).astype(np.float32)
    residual = rng.standard_normal(x.shape).astype(np.float32) if more[1] else None
    found, total = LayerNorm(scale, bias if more[0] else None, kernels)(x, residual, threads=threads)
    expected = x + (0 if residual is None else residual)
    np.testing.assert_array_equal(total, expected)
    wide = expected.astype(np.float64)
    normal = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        found, normal * scale + (bias if more[0] else 0), rtol=1e-4, atol=2e-3 if shift else 1e-4
    )
