"""Attention, and layer normalization of tiles, against plain formulas in double precision."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigl_compress.runtime.attention_kernel import Attention
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import Array, kernel_sets
from rigl_compress.runtime.norm_kernel import LayerNorm
from rigl_compress.runtime.tile_arrays import from_tiles, to_tiles

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
SETS = [] if unavailable_reason() else kernel_sets()
MASKS = ("none", "keys", "queries", "heads")


def reference(q: Array, k: Array, v: Array, mask: Array | None, scale: float) -> Array:
    """Attention of [batch, heads, tokens, features]."""
    with np.errstate(invalid="ignore"):
        scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * scale + (0 if mask is None else mask)
        shares = np.exp(scores - scores.max(3, keepdims=True, initial=-np.inf))
    return shares / shares.sum(3, keepdims=True) @ v.astype(np.float64)


def split(x: Array, heads: int, size: int, first: int) -> Array:
    part = x[:, :, first : first + heads * size]
    return part.reshape(*x.shape[:2], heads, size).transpose(0, 2, 1, 3)


def mask_of(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array | None:
    """A mask that leaves at least the first key to each query."""
    if kind == "none":
        return None
    lengths = {"keys": (shape[0], 1, 1, shape[3]), "queries": (shape[2], shape[3]), "heads": (1, *shape[1:3], 1)}[kind]
    mask = np.where(rng.random(lengths) < 0.3, -np.inf if kind != "heads" else -3, rng.standard_normal(lengths))
    if kind != "heads":
        mask[..., 0] = 0
    return mask.astype(np.float32)


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=120)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    tokens=st.tuples(*[st.one_of(st.integers(1, 40), st.sampled_from([64, 130]))] * 2),
    sizes=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    first=st.tuples(*[st.integers(0, 3)] * 3),
    mask=st.sampled_from(MASKS),
    by_column=st.sets(st.sampled_from("qkvy")),
    threads=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_attention(kernels: str, batch: int, heads: int, tokens: Any, sizes: Any, seed: int, **other: Any) -> None:
    rng, (queries, keys), first = np.random.default_rng(seed), tokens, other["first"]
    widths = [(queries, sizes[0]), (keys, sizes[0]), (keys, sizes[1])]
    q, k, v = (
        rng.standard_normal((batch, count, skipped + heads * size + 1)).astype(np.float32)
        for (count, size), skipped in zip(widths, first, strict=True)
    )
    mask = mask_of(other["mask"], (batch, heads, queries, keys), rng)
    kernel = Attention(heads, sizes, 0.7, first, kernels, tuple(other["by_column"]))
    found = kernel(q, k, v, mask, threads=other["threads"])
    parts = (split(x, heads, size, at) for x, (_, size), at in zip((q, k, v), widths, first, strict=True))
    expected = reference(*parts, mask, 0.7).transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kernels", SETS)
def test_what_a_mask_excludes_does_not_count(kernels: str) -> None:
    x = np.ones((1, 3, 4), np.float32)
    v = np.stack([np.zeros(4), np.ones(4), np.full(4, 1e38)]).astype(np.float32)[None]
    mask = np.array([0, 0, -1e30], np.float32)
    assert (Attention(1, (4, 4), 1.0, kernels=kernels)(x, x, v, mask) == 0.5).all()


@pytest.mark.parametrize("kernels", SETS)
def test_large_scores(kernels: str) -> None:
    q, k = np.array([[[1e4], [-1e4]]], np.float32), np.array([[[1e4], [2e4], [-1e4]]], np.float32)
    v = np.array([[[1], [2], [3]]], np.float32)
    assert Attention(1, (1, 1), 1.0, kernels=kernels)(q, k, v).ravel().tolist() == [2, 3]


@pytest.mark.parametrize("kernels", SETS)
def test_nan_and_infinity_become_nan(kernels: str) -> None:
    q = np.ones((1, 3, 1), np.float32)
    q[0, 1] = np.array([0x7F800123], np.uint32).view(np.float32)  # with other bits than those that processors make
    v = np.ones((1, 3, 1), np.float32)
    attention = Attention(1, (1, 1), 1.0, kernels=kernels)
    assert np.isnan(attention(q, v, v)).ravel().tolist() == [False, True, False]
    assert np.isnan(attention(v, v, v, np.full((3, 1), -np.inf, np.float32))).all()


@pytest.mark.parametrize("kernels", SETS)
def test_no_keys(kernels: str) -> None:
    q, k = np.ones((2, 3, 4), np.float32), np.ones((2, 0, 4), np.float32)
    assert (Attention(2, (2, 2), 1.0, kernels=kernels)(q, k, k) == 0).all()


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.one_of(st.integers(0, 40), st.sampled_from([127, 128, 196])), st.integers(1, 40)),
    by_column=st.sets(st.sampled_from(["x", "residual", "y", "sum"])),
    given_values=st.tuples(st.booleans(), st.booleans()),
    threads=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_layer_norm_of_tiles(
    kernels: str, shape: Any, by_column: set[str], given_values: tuple[bool, bool], threads: int, seed: int
) -> None:
    rng, (with_residual, with_bias) = np.random.default_rng(seed), given_values
    x, residual = (rng.standard_normal(shape).astype(np.float32) + 3 for _ in range(2))
    scale, bias = (rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))
    kernel = LayerNorm(scale, bias if with_bias else None, kernels, epsilon=1e-3)
    y, total = kernel(x, residual if with_residual else None, by_column=tuple(by_column), threads=threads)
    expected = x + residual if with_residual else x
    np.testing.assert_array_equal(total, expected)
    exact = expected.astype(np.float64)
    centered = exact - exact.mean(1, keepdims=True)
    normalized = centered / np.sqrt(centered.var(1, keepdims=True) + 1e-3) * scale + (bias if with_bias else 0)
    np.testing.assert_allclose(y, normalized, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("count", [0, 1, 45, 300])
def test_tiles_keep_the_numbers(kernels: str, count: int) -> None:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    assert (from_tiles(to_tiles(x, kernels), kernels) == x).all()
