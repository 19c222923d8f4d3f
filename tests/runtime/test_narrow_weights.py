"""Weights of 16 and 8 bits stay so in memory, and give what the same numbers give in 32 bits."""

import struct
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.runtime.kernel_library import kernels_library, unavailable_reason
from rigl_compress.runtime.kernels import NO_LIMITS, Gru, MatMul, kernel_sets
from rigl_compress.runtime.packed_weights import FLOAT16, FLOAT32, INT8, pack_matrix
from rigl_compress.runtime.rewrite import rewrite

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
Array = NDArray[Any]
SETS = kernel_sets() if not unavailable_reason() else []
# Beyond 2^17 non-zeros weights are stored as narrow as they are given, and sums are split into two passes.
LARGE = (520, 700)
node = helper.make_node


def masked(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Array:
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[rng.random(shape) >= density] = 0
    return weight


def given_as(kind: int, weight: Array, rng: np.random.Generator) -> tuple[Array, tuple[Array, ...]]:
    """The weights in the numbers of a kind, and their scales."""
    if kind == FLOAT16:
        return weight.astype(np.float16).astype(np.float32), ()
    if kind == FLOAT32:
        return weight, ()
    scale = (0.01 + 0.02 * rng.random(len(weight))).astype(np.float32)
    return np.clip(np.rint(weight / scale[:, None]), -128, 127).astype(np.float32) * scale[:, None], (scale,)


def kind_of(packed: Array) -> int:
    version, *_, kind = struct.unpack("<IIIQII", packed.tobytes()[4:32])
    assert version == (1 if kind == FLOAT32 else 2)
    return int(kind)


@pytest.mark.parametrize("kind", [FLOAT32, FLOAT16, INT8])
def test_the_narrowest_kind_that_holds_all_values_is_chosen(kind: int) -> None:
    rng = np.random.default_rng(0)
    weight, scales = given_as(kind, masked(rng, (9, 40), 0.5), rng)
    packed = pack_matrix(weight, scales)
    assert kind_of(packed) == kind
    count, extra = np.count_nonzero(weight), 4 * 9 if kind == INT8 else 0
    assert packed.nbytes == 32 + 4 * 9 + extra + count * (2 + {FLOAT32: 4, FLOAT16: 2, INT8: 1}[kind])


@pytest.mark.parametrize("odd", [1 / 3, 1e-9, 7e4, np.inf, np.nan], ids=str)
def test_one_value_that_16_bits_do_not_hold_keeps_all_in_32(odd: float) -> None:
    weight = np.ones((20, 20), np.float32)
    weight[19, 19] = odd
    assert kind_of(pack_matrix(weight)) == FLOAT32
    assert kind_of(pack_matrix(weight, (np.float32([1.0]),))) == FLOAT32


@pytest.mark.parametrize("scale", [0.0, -0.5, 1e-38, np.inf, np.nan], ids=str)
def test_a_scale_that_is_no_usual_number_is_not_used(scale: float) -> None:
    weight = np.eye(5, dtype=np.float32)
    assert kind_of(pack_matrix(weight, (np.full(5, scale, np.float32), np.ones(3, np.float32)))) == FLOAT16


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("kind", [FLOAT32, FLOAT16, INT8])
@settings(deadline=None, max_examples=8)
@given(
    seed=st.integers(0, 2**32),
    density=st.sampled_from([0.36, 0.4, 0.7, 1.0]),
    batch=st.sampled_from([1, 1, 1, 3]),
    threads=st.sampled_from([1, 1, 2]),
    limits=st.sampled_from([NO_LIMITS, (0.0, 6.0)]),
)
def test_large_products(
    kernels: str, kind: int, seed: int, density: float, batch: int, threads: int, limits: Any
) -> None:
    rng = np.random.default_rng(seed)
    shape = (LARGE[0] - seed % 17, LARGE[1] + seed % 61)
    weight, scales = given_as(kind, masked(rng, shape, density), rng)
    weight[rng.integers(0, shape[0], 40)] = 0  # rows of very different lengths
    x, bias = (
        rng.standard_normal((batch, shape[1])).astype(np.float32),
        rng.standard_normal(shape[0]).astype(np.float32),
    )
    found = MatMul(weight, kernels, scales=scales)(x, bias, limits, threads=threads)
    expected = np.clip(x.astype(np.float64) @ weight.T.astype(np.float64) + bias, *limits)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("kernels", SETS)
def test_every_float_of_16_bits_is_widened_exactly(kernels: str) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    finite = np.resize(bits[(bits & 0x7C00) != 0x7C00], (512, 512)).view(np.float16).astype(np.float32)
    product = MatMul(finite, kernels)
    for column in range(0, 512, 37):
        x = np.zeros((1, 512), np.float32)
        x[0, column] = 1
        np.testing.assert_array_equal(product(x)[0], finite[:, column])


@pytest.mark.parametrize("kernels", SETS)
def test_states_are_multiplied_by_narrow_weights(kernels: str) -> None:
    rng = np.random.default_rng(1)
    weight = masked(rng, (3 * 256, 256), 0.8).astype(np.float16).astype(np.float32) / 16
    x = rng.standard_normal((4, 1, 3 * 256)).astype(np.float32)
    shifted = np.nextafter(weight, 1, dtype=np.float32)  # not narrow, and as good as equal
    narrow, wide = (Gru(each, kernels)(x)[0] for each in (weight, np.where(weight == 0, weight, shifted)))
    np.testing.assert_allclose(narrow, wide, atol=1e-5)


def layer(nodes: list[onnx.NodeProto], weights: dict[str, Array]) -> bytes:
    values = [helper.make_tensor_value_info(*each) for each in (("x", 1, [1, LARGE[1]]), ("y", 1, [1, LARGE[0]]))]
    initializers = [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


W = masked(np.random.default_rng(2), LARGE, 0.38)
Q = np.clip(np.rint(W * 40), -127, 127).astype(np.int8)
UNSIGNED = (Q.astype(np.int32) + 128).astype(np.uint8)
SCALES = np.linspace(0.01, 0.03, LARGE[0], dtype=np.float32)
CAST = node("Cast", ["w"], ["d"], to=TensorProto.FLOAT)
FORMS = {
    "float16, cast": (layer([CAST, node("Gemm", ["x", "d"], ["y"], transB=1)], {"w": W.astype(np.float16)}), FLOAT16),
    "float16, cast and transposed": (
        layer(
            [CAST, node("Transpose", ["d"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])],
            {"w": W.astype(np.float16)},
        ),
        FLOAT16,
    ),
    "int8, one scale": (
        layer(
            [node("DequantizeLinear", ["w", "s"], ["d"]), node("Gemm", ["x", "d"], ["y"], transB=1)],
            {"w": Q, "s": np.float32(0.0213)},
        ),
        INT8,
    ),
    "uint8, a scale per output, transposed": (
        layer(
            [
                node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0),
                *(node("Transpose", ["d"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])),
            ],
            {"w": UNSIGNED, "s": SCALES, "z": np.full(LARGE[0], 128, np.uint8)},
        ),
        INT8,
    ),
    "int8, a scale per input": (
        layer(
            [node("DequantizeLinear", ["w", "s"], ["d"], axis=0), node("MatMul", ["x", "d"], ["y"])],
            {"w": Q.T, "s": np.linspace(0.01, 0.03, LARGE[1], dtype=np.float32)},
        ),
        FLOAT32,
    ),
    "uint8 beyond 8 bits": (
        layer(
            [node("DequantizeLinear", ["w", "s"], ["d"]), node("Gemm", ["x", "d"], ["y"], transB=1)],
            {"w": np.where(W == 0, 0, np.abs(Q.astype(np.int32)) * 2 + 1).astype(np.uint8), "s": np.float32(0.0213)},
        ),
        FLOAT32,
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_sessions_keep_weights_as_narrow_as_the_file_has_them(form: str) -> None:
    model, kind = FORMS[form]
    rewritten = rewrite(onnx.ModelProto.FromString(model), lambda *_: True).model
    packed = next(each for each in rewritten.graph.initializer if each.name.endswith("/packed"))
    assert kind_of(numpy_helper.to_array(packed)) == kind
    inputs = {"x": np.random.default_rng(3).standard_normal((1, LARGE[1])).astype(np.float32)}
    options = session_options()  # the optimized graph may multiply activations of 8 bits
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = open_session(model, options).run(None, inputs)[0]
    options.register_custom_ops_library(str(kernels_library()))
    found = open_session(rewritten.SerializeToString(), options).run(None, inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
