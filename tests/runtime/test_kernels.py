"""Every kernel against a few lines of NumPy, over shapes, strides, sparsities, empty rows, NaN and infinity."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import (
    NO_LIMITS,
    Conv,
    Depthwise,
    Gru,
    MatMul,
    Window,
    check_packed,
    chosen_set,
    kernel_sets,
)
from rigl_compress.runtime.packed_weights import conv_matrix, pack_matrix

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
Array = NDArray[Any]
SETS = kernel_sets() if not unavailable_reason() else []
LIMITS = st.sampled_from([NO_LIMITS, (0.0, np.inf), (0.0, 6.0)])
DENSITIES = st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0])
THREADS = st.integers(1, 3)


def sparse_matrix(rng: np.random.Generator, shape: tuple[int, ...], density: float) -> Array:
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) >= density] = 0
    return weight


def product(matrix: Array, x: Array) -> Array:
    """x @ matrix.T over the non-zeros alone: a zero weight hides even NaN."""
    result = np.zeros((len(x), len(matrix)))
    for row, column in zip(*np.nonzero(matrix), strict=True):
        result[:, row] += np.float64(matrix[row, column]) * x[:, column].astype(np.float64)
    return result


def unfolded(x: Array, kernel: tuple[int, int], window: Window) -> Array:
    """The pixels under each place of the filter: [batch, height, width, channels · places]."""
    top, left, bottom, right = window.pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    height, width = window.output(x.shape[2:], kernel)
    places = [
        padded[
            :,
            :,
            r * window.dilations[0] :: window.strides[0],
            c * window.dilations[1] :: window.strides[1],
        ][:, :, :height, :width]
        for r in range(kernel[0])
        for c in range(kernel[1])
    ]
    batch, channels = x.shape[:2]
    return np.stack(places, axis=2).reshape(batch, channels * len(places), height, width).transpose(0, 2, 3, 1)


def convolution(weight: Array, x: Array, window: Window) -> Array:
    pixels = unfolded(x, weight.shape[2:], window)
    flat = product(conv_matrix(weight, window.groups), pixels.reshape(-1, pixels.shape[-1]))
    return flat.reshape(*pixels.shape[:3], len(weight)).transpose(0, 3, 1, 2)


def clipped(values: Array, limits: tuple[float, float]) -> Array:
    """NaN passes through."""
    return np.where(np.isnan(values), values, np.clip(values, *limits))


def assert_close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected.astype(np.float32), rtol=1e-4, atol=1e-4)


@st.composite
def products(draw: st.DrawFn) -> tuple[Array, Array, Array | None]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(st.integers(1, 70)), draw(st.integers(1, 300))
    batch = draw(st.sampled_from([1, 2, 7, 8, 16, 33, 64, 130]))
    matrix = sparse_matrix(rng, (rows, columns), draw(DENSITIES))
    x = rng.standard_normal((batch, columns)).astype(np.float32)
    return matrix, x, rng.standard_normal(rows).astype(np.float32) if draw(st.booleans()) else None


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Array, Array, Window]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = groups * draw(st.integers(1, 6)), groups * draw(st.integers(1, 9))
    pair = st.tuples(*[st.sampled_from([1, 1, 2, 3, 9])] * 2)
    kernel, strides, dilations = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (1, 3), (2, 2)])), draw(pair), draw(pair)
    pads = draw(st.tuples(*[st.sampled_from([0, 0, 1, 2, 3, 7])] * 4))
    window = Window(strides, dilations, pads, groups)
    smallest = [max(0, dilations[a] * (kernel[a] - 1) + 1 - pads[a] - pads[a + 2]) for a in range(2)]
    more = draw(st.sampled_from([1, 2, 20]))  # tiny images, or some of any size
    size = tuple(draw(st.integers(low, low + more)) for low in smallest)
    weight = sparse_matrix(rng, (outputs, inputs // groups, *kernel), draw(DENSITIES))
    x = rng.standard_normal((draw(st.sampled_from([1, 1, 2, 0])), inputs, *size)).astype(np.float32)
    return weight, x, window


@st.composite
def tiny_images(draw: st.DrawFn) -> tuple[Array, Array, Window]:
    """One or two pixels, and a filter that is as small; padding and strides go beyond both."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kernel = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1)]))
    strides, pads = draw(st.tuples(*[st.integers(1, 4)] * 2)), draw(st.tuples(*[st.integers(0, 2)] * 4))
    window = Window(strides, draw(st.tuples(*[st.integers(1, 2)] * 2)), pads)
    size = draw(st.sampled_from([(1, 1), (1, 1), (1, 2), (2, 1)]))
    assume(min(window.output(size, kernel)) > 0)
    x = rng.standard_normal((draw(st.integers(1, 2)), 3, *size)).astype(np.float32)
    return sparse_matrix(rng, (4, 3, *kernel), 0.8), x, window


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=150)
@given(case=tiny_images(), threads=THREADS)
def test_tiny_images(kernels: str, case: Any, threads: int) -> None:
    weight, x, window = case
    bias = np.linspace(-1, 1, len(weight)).astype(np.float32)
    found = Conv(weight, window, kernels)(x, bias, threads=threads)
    assert_close(found, convolution(weight, x, window) + bias[:, None, None])


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=80)
@given(case=products(), limits=LIMITS, threads=THREADS, by_column=st.sampled_from(["", "x", "y", "xy"]))
def test_products(kernels: str, case: Any, limits: Any, threads: int, by_column: str) -> None:
    matrix, x, bias = case
    found = MatMul(matrix, kernels)(x, bias, limits, by_column=by_column, threads=threads)
    expected = clipped(product(matrix, x) + (0 if bias is None else bias), limits)
    assert_close(found, expected)


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=120)
@given(case=convolutions(), limits=LIMITS, threads=THREADS, given=st.tuples(*[st.booleans()] * 3))
def test_convolutions(kernels: str, case: Any, limits: Any, threads: int, given: tuple[bool, bool, bool]) -> None:
    weight, x, window = case
    with_residual, with_bias, with_scale = given
    scale = np.sin(np.arange(x.shape[0] * x.shape[1])).reshape(x.shape[:2]).astype(np.float32) if with_scale else None
    expected = convolution(weight, x if scale is None else x * scale[:, :, None, None], window)
    bias = np.linspace(-1, 1, len(weight)).astype(np.float32) if with_bias else None
    residual = np.cos(np.arange(expected.size)).reshape(expected.shape).astype(np.float32) if with_residual else None
    found = Conv(weight, window, kernels)(x, bias, residual, limits, scale=scale, threads=threads)
    expected = expected + (0 if bias is None else bias[:, None, None]) + (0 if residual is None else residual)
    assert_close(found, clipped(expected, limits))


@pytest.mark.parametrize("kernels", SETS)
def test_factors_of_channels_where_pixels_are_read_one_by_one(kernels: str) -> None:
    rng = np.random.default_rng(0)
    weight, x = sparse_matrix(rng, (2, 12, 3, 3), 0.5), rng.standard_normal((1, 12, 4, 4)).astype(np.float32)
    conv, scale = Conv(weight, Window(pads=(0, 65535, 0, 65535)), kernels), rng.random((1, 12), dtype=np.float32)
    assert_close(conv(x, scale=scale), conv(x * scale[:, :, None, None]))


@st.composite
def windows(draw: st.DrawFn, channels: int) -> tuple[tuple[int, int], Array, Window]:
    """A kernel, images and how it moves over them; padded no farther than it reaches."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kernel = draw(st.sampled_from([(3, 3), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2), (1, 1)]))
    strides, dilations = (
        draw(st.sampled_from([(1, 1), (2, 2), (3, 3), (1, 2), (2, 1), (9, 11), (700, 1)])),
        draw(st.sampled_from([(1, 1), (1, 1), (2, 2), (1, 3), (9, 300)])),
    )
    reach = [dilations[a] * (kernel[a] - 1) for a in range(2)]
    pads = tuple(draw(st.integers(0, far)) for far in reach * 2)
    window = Window(strides, dilations, (pads[0], pads[1], pads[2], pads[3]))
    smallest = [max(1, reach[a] + 1 - pads[a] - pads[a + 2]) for a in range(2)]
    more = draw(st.sampled_from([1, 35]))
    size = tuple(draw(st.integers(low, low + more)) for low in smallest)
    return kernel, rng.standard_normal((draw(st.integers(1, 2)), channels, *size)).astype(np.float32), window


@st.composite
def depthwise(draw: st.DrawFn) -> tuple[Array, Array, Window]:
    channels = draw(st.integers(1, 9))
    kernel, x, window = draw(windows(channels))
    weight = np.random.default_rng(channels).standard_normal((channels, 1, *kernel)).astype(np.float32)
    return weight, x, replace(window, groups=channels)


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=150)
@given(case=depthwise(), limits=LIMITS, threads=THREADS, with_bias=st.booleans())
def test_depthwise(kernels: str, case: Any, limits: Any, threads: int, with_bias: bool) -> None:
    weight, x, window = case
    bias = np.linspace(-1, 1, len(weight)).astype(np.float32) if with_bias else None
    found = Depthwise(weight, window, kernels)(x, bias, limits, threads=threads)
    expected = convolution(weight, x, window) + (0 if bias is None else bias[:, None, None])
    assert_close(found, clipped(expected, limits))


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [7, 8, 9, 16])
@pytest.mark.parametrize("side", [3, 5])
def test_depthwise_keeps_nan_among_neighbours(kernels: str, stride: int, size: int, side: int) -> None:
    rng = np.random.default_rng(0)
    weight, window = (
        rng.standard_normal((3, 1, side, side)).astype(np.float32),
        Window((stride,) * 2, pads=(side // 2,) * 4, groups=3),
    )
    x = rng.standard_normal((2, 3, size, size)).astype(np.float32)
    # At the edges: the end of a row, the first and the last pixel.
    x[0, 1, 2, -1], x[0, 0, -1, -1], x[1, 2, 0, 0] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        assert_close(Depthwise(weight, window, kernels)(x), convolution(weight, x, window))


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("size", [(2, 3), (5, 9), (8, 8)])
def test_depthwise_leaves_out_the_last_column(kernels: str, size: tuple[int, int]) -> None:
    """Two by two in steps of two: of an odd width the last column is never read."""
    rng = np.random.default_rng(0)
    weight, window = rng.standard_normal((3, 1, 2, 2)).astype(np.float32), Window((2, 2), groups=3)
    x = rng.standard_normal((2, 3, *size)).astype(np.float32)
    assert_close(Depthwise(weight, window, kernels)(x), convolution(weight, x, window))


def test_filters_that_do_not_fit() -> None:
    weight = np.ones((2, 1, 3, 3), dtype=np.float32)
    with pytest.raises(InputError, match="no more padding than the kernel reaches"):
        Depthwise(weight, Window(pads=(3, 1, 1, 1)))
    with pytest.raises(InputError, match="kernel, stride and dilation of at least 1"):
        Depthwise(weight, Window(strides=(0, 1)))


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_images_of_one_pixel(kernels: str, batch: int) -> None:
    rng = np.random.default_rng(0)
    weight, x = sparse_matrix(rng, (30, 50, 1, 1), 0.2), rng.standard_normal((batch, 50, 1, 1)).astype(np.float32)
    bias = rng.standard_normal(30).astype(np.float32)
    expected = convolution(weight, x, Window()) + bias[:, None, None]
    for threads in (1, 2):
        assert_close(Conv(weight, None, kernels)(x, bias, threads=threads), expected)
        residual = np.ones_like(expected, dtype=np.float32)
        assert_close(Conv(weight, None, kernels)(x, bias, residual, threads=threads), expected + 1)
    padded = Window(pads=(1, 0, 0, 1))
    assert_close(Conv(weight, padded, kernels)(x), convolution(weight, x, padded))


def sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def gru_step(matrix: Array, x: Array, bias: Array | float, state: Array, reset_after: bool) -> Array:
    """The equations of the ONNX standard, for one sample."""
    update, reset, new = np.split(product(matrix, state[None].astype(np.float32))[0], 3)
    given_update, given_reset, given_new = np.split(x, 3)
    kept, through = sigmoid(given_update + update), sigmoid(given_reset + reset)
    if not reset_after:
        new = product(matrix, (through * state)[None].astype(np.float32))[0][len(state) * 2 :]
    fresh = np.tanh(given_new + ((new + bias) * through if reset_after else new))
    return np.asarray((1 - kept) * fresh + kept * state)


def gru(matrix: Array, x: Array, bias: Array | float, start: Array, options: dict[str, Any]) -> tuple[Array, Array]:
    """One direction, sample by sample: states that no step gives are zeros."""
    states, last = np.zeros((*x.shape[:2], matrix.shape[1])), start.astype(np.float64)
    for sample, length in enumerate(options.get("lengths", [len(x)] * x.shape[1])):
        steps = range(length)
        for step in reversed(steps) if options.get("backward") else steps:
            given = x[step, sample].astype(np.float64)
            last[sample] = gru_step(matrix, given, bias, last[sample], options.get("reset_after", True))
            states[step, sample] = last[sample]
        last[sample] *= not ("lengths" in options and length == 0)  # as ONNX Runtime has it
    return states, last


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 40),
    steps=st.integers(0, 6),
    batch=st.sampled_from([0, 1, 2, 9]),
    given_more=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    backward=st.sampled_from([(False,), (True,), (False, True)]),
    reset_after=st.booleans(),
    threads=THREADS,
)
def test_gru(
    kernels: str,
    seed: int,
    size: int,
    steps: int,
    batch: int,
    given_more: tuple[bool, bool, bool],
    backward: tuple[bool, ...],
    reset_after: bool,
    threads: int,
) -> None:
    rng, ways = np.random.default_rng(seed), len(backward)
    matrix = sparse_matrix(rng, (ways, 3 * size, size), 0.2)
    x = (3 * rng.standard_normal((steps, batch, ways, 3 * size))).astype(np.float32)
    with_bias, with_start, with_lengths = given_more
    bias = rng.standard_normal((ways, size)).astype(np.float32) if with_bias and reset_after else None
    start = rng.standard_normal((ways, batch, size)).astype(np.float32) if with_start else None
    lengths = rng.integers(0, steps + 1, batch).astype(np.int32) if with_lengths else None
    operator = Gru(matrix.reshape(-1, size), kernels, backward=backward, reset_after=reset_after)
    found, last = operator(x.reshape(steps, batch, ways * 3 * size), bias, start, lengths, threads=threads)
    for way in range(ways):
        options: dict[str, Any] = {"backward": backward[way], "reset_after": reset_after}
        options |= {} if lengths is None else {"lengths": lengths}
        begin = np.zeros((batch, size)) if start is None else start[way]
        expected, end = gru(matrix[way], x[:, :, way], 0.0 if bias is None else bias[way], begin, options)
        np.testing.assert_allclose(found[:, way], expected, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(last[way], end, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("kernels", SETS)
def test_gates_far_out(kernels: str) -> None:
    x = np.array([-1e30, -200, -88, 88, 200, 1e30, np.inf, -np.inf, np.nan], dtype=np.float32).repeat(3)
    x = x.reshape(-1, 1, 3)
    found, _ = Gru(np.zeros((3, 1), dtype=np.float32), kernels)(x)
    with np.errstate(over="ignore", invalid="ignore"):
        expected, _ = gru(np.zeros((3, 1), np.float32), x, 0.0, np.zeros((1, 1)), {})
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("limits", [NO_LIMITS, (0.0, 6.0)])
def test_nan_and_infinity_go_where_their_weights_lead(kernels: str, batch: int, limits: tuple[float, float]) -> None:
    rng = np.random.default_rng(0)
    matrix = sparse_matrix(rng, (40, 50), 0.1)
    x = rng.standard_normal((batch, 50)).astype(np.float32)
    x[0, 3], x[batch // 2, 7], x[-1, 11] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = clipped(product(matrix, x), limits)
    assert np.isnan(expected).any()
    assert_close(MatMul(matrix, kernels)(x, limits=limits), expected)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [8, 16, 32])
@pytest.mark.parametrize("dilation", [1, 2])
def test_widths_at_which_rows_of_the_filter_share_what_they_read(
    kernels: str, stride: int, size: int, dilation: int
) -> None:
    rng = np.random.default_rng(0)
    weight = sparse_matrix(rng, (20, 12, 3, 3), 0.2)
    window = Window((stride, stride), (dilation, dilation), (dilation,) * 4)
    x = rng.standard_normal((2, 12, size * stride + 3, size * stride)).astype(np.float32)
    assert_close(Conv(weight, window, kernels)(x, threads=2), convolution(weight, x, window))


@pytest.mark.parametrize("kernels", SETS)
def test_nan_in_an_image_reaches_its_neighbours_alone(kernels: str) -> None:
    rng = np.random.default_rng(0)
    weight, window = sparse_matrix(rng, (9, 4, 3, 3), 0.5), Window(pads=(1, 1, 1, 1))
    x = rng.standard_normal((1, 4, 9, 9)).astype(np.float32)
    x[0, 1, 0, 8], x[0, 3, 8, 0], x[0, 0, 4, 4] = np.nan, np.inf, np.nan
    with np.errstate(invalid="ignore"):
        assert_close(Conv(weight, window, kernels)(x), convolution(weight, x, window))


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("batch", [1, 9])
def test_more_columns_than_sixteen_bits(kernels: str, batch: int) -> None:
    rng = np.random.default_rng(0)
    matrix = np.zeros((10, 140_000), dtype=np.float32)
    matrix[rng.integers(0, 10, 500), rng.integers(0, 140_000, 500)] = 1
    matrix[3] = 0
    x = rng.standard_normal((batch, 140_000)).astype(np.float32)
    assert_close(MatMul(matrix, kernels)(x, threads=2), product(matrix, x))


def test_many_rows_share_the_second_cache() -> None:
    rng = np.random.default_rng(0)
    weight, x = sparse_matrix(rng, (2000, 30, 1, 1), 0.05), rng.standard_normal((1, 30, 14, 14)).astype(np.float32)
    for threads in (1, 2):
        assert_close(Conv(weight)(x, threads=threads), convolution(weight, x, Window()))


def test_one_operator_takes_images_of_any_size() -> None:
    rng = np.random.default_rng(0)
    weight, window = sparse_matrix(rng, (8, 3, 3, 3), 0.3), Window((2, 2), pads=(1, 1, 1, 1))
    conv = Conv(weight, window)
    for size in [*range(3, 12), 3]:
        x = rng.standard_normal((2, 3, size, size + 1)).astype(np.float32)
        assert_close(conv(x), convolution(weight, x, window))


def test_the_residual_may_be_the_output() -> None:
    rng = np.random.default_rng(0)
    weight, x = sparse_matrix(rng, (300, 300, 1, 1), 0.1), rng.standard_normal((1, 300, 7, 7)).astype(np.float32)
    import rigl_compress.runtime.kernels as kernels

    conv, y = Conv(weight), rng.standard_normal((1, 300, 7, 7)).astype(np.float32)
    expected = convolution(weight, x, Window()) + y
    call = kernels._ConvCall(kernels._data(x), 1, 7, 7, None, kernels._data(y), kernels._data(y), *NO_LIMITS)
    conv._kernel.run(call, 2)
    assert_close(y, expected)


def test_unknown_kernels() -> None:
    with pytest.raises(InputError, match="no kernels 'sse9' on this machine: choose one of portable"):
        MatMul(np.eye(2, dtype=np.float32), "sse9")
    assert chosen_set() in SETS


@settings(deadline=None, max_examples=300)
@given(noise=st.binary(max_size=200), keep=st.integers(0, 60))
def test_any_bytes_are_refused_or_read(noise: bytes, keep: int) -> None:
    good = pack_matrix(np.eye(6, dtype=np.float32)).tobytes()
    check_packed(noise)
    message = check_packed(good[:keep] + noise)
    assert message or len(good[:keep] + noise) == len(good)


@settings(deadline=None, max_examples=300)
@given(place=st.integers(0, 91), value=st.integers(0, 255))
def test_a_changed_byte_is_noticed_or_harmless(place: int, value: int) -> None:
    packed = bytearray(pack_matrix(np.eye(6, dtype=np.float32) / 3).tobytes())
    packed[place] = value
    message = check_packed(bytes(packed))
    values = range(32 + 6 * 4, 32 + 6 * 8)
    assert message == "" or place not in values, "any value will do"


@pytest.mark.parametrize(
    ("start", "stop", "content", "message"),
    [
        (0, 4, b"RGLX", "not packed weights"),
        (4, 8, b"\x03\0\0\0", "unsupported version"),
        (4, 8, b"\x02\0\0\0", "unknown kind of values"),
        (8, 12, b"\0\0\0\0", "no rows or no columns"),
        (8, 12, b"\xff\xff\xff\xff", "truncated"),
        (12, 16, b"\x03\0\0\0", "column index out of range"),
        (16, 24, b"\xff" * 8, "truncated"),
        (16, 24, b"\x05" + b"\0" * 7, "wrong length"),
        (24, 28, b"\x04\0\0\0", "wrong size of indices"),
        (32, 36, b"\x07\0\0\0", "more non-zeros than the header"),
        (32, 36, b"\0\0\0\0", "fewer non-zeros than the header"),
        (32, 40, b"\x02\0\0\0\0\0\0\0", ""),
        (32, 36, b"\x02\0\0\0", "more non-zeros than the header"),
    ],
)
def test_what_is_wrong_with_packed_weights(start: int, stop: int, content: bytes, message: str) -> None:
    packed = bytearray(pack_matrix(np.eye(6, dtype=np.float32) / 3).tobytes())
    packed[start:stop] = content
    assert message in check_packed(bytes(packed))
    assert bool(message) == bool(check_packed(bytes(packed)))


def test_columns_out_of_order() -> None:
    packed = bytearray(pack_matrix(np.ones((1, 2), dtype=np.float32)).tobytes())
    packed[-4:] = b"\1\0\0\0"
    assert "do not increase" in check_packed(bytes(packed))
