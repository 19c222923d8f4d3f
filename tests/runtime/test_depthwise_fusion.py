"""A sparse 1×1 convolution, the depthwise one behind it and the means of its output are one operator."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_graphs import model, node

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import Depthwise, Window, kernel_sets
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.sparse_depthwise_kernel import SparseDepthwise

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
Array = NDArray[Any]
SETS = kernel_sets() if not unavailable_reason() else []
APPLY: dict[str, Any] = {
    "": lambda x: x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hard-swish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
}


def sparse(rng: np.random.Generator, *shape: int) -> Array:
    drawn = rng.standard_normal(shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.6, np.float32(0), drawn)


@pytest.mark.parametrize("kernels", SETS)
@settings(deadline=None, max_examples=80)
@given(
    seed=st.integers(0, 2**32),
    size=st.tuples(st.integers(3, 40), st.integers(3, 70)),
    side=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 3),
    activations=st.tuples(st.sampled_from(list(APPLY)), st.sampled_from(list(APPLY))),
    low=st.sampled_from([-np.inf, 0.0]),
    threads=st.integers(1, 3),
)
def test_kernel(
    kernels: str,
    seed: int,
    size: tuple[int, int],
    side: int,
    stride: int,
    activations: tuple[str, str],
    low: float,
    threads: int,
) -> None:
    rng = np.random.default_rng(seed)
    channels, inputs = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    matrix, filters = sparse(rng, channels, inputs), rng.standard_normal((channels, 1, side, side)).astype(np.float32)
    biases = rng.standard_normal((2, channels)).astype(np.float32)
    x = rng.standard_normal((2, inputs, *size)).astype(np.float32)
    window = Window((stride,) * 2, pads=(side // 2,) * 4, groups=channels)
    limits = ((low, np.inf), (low, np.inf))
    fused = SparseDepthwise(matrix, filters, window, kernels)
    found, means = fused(x, (biases[0], biases[1]), activations, limits, threads=threads)
    wide = np.einsum("oi,nihw->nohw", matrix.astype(np.float64), x) + biases[0][:, None, None]
    wide = APPLY[activations[0]](np.maximum(wide, low)).astype(np.float32)
    # The filters themselves have a test of their own, against NumPy.
    expected = Depthwise(filters, window, kernels)(wide, biases[1], limits[1])
    expected = APPLY[activations[1]](expected.astype(np.float64))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(means, found.mean((2, 3), keepdims=True, dtype=np.float64), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", SETS)
def test_windows_far_larger_than_the_image(kernels: str) -> None:
    rng = np.random.default_rng(0)
    matrix, filters = sparse(rng, 4, 3), rng.standard_normal((4, 1, 3, 3)).astype(np.float32)
    x, window = rng.standard_normal((1, 3, 5, 6)).astype(np.float32), Window((700, 700), (300, 300), (300,) * 4, 4)
    wide = np.einsum("oi,nihw->nohw", matrix, x)
    expected = Depthwise(filters, window, kernels)(wide)
    np.testing.assert_allclose(SparseDepthwise(matrix, filters, window, kernels)(x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", SETS)
def test_a_zero_weight_hides_nan(kernels: str) -> None:
    matrix, x = np.float32([[1, 0], [0, 1]]), np.ones((1, 2, 9, 9), np.float32)
    x[0, 1, 4, 4] = np.nan
    found, means = SparseDepthwise(matrix, np.ones((2, 1, 3, 3), np.float32), Window(pads=(1,) * 4), kernels)(x)
    assert np.isfinite(found[0, 0]).all()
    assert np.isnan(found[0, 1, 3:6, 3:6]).all()
    assert np.isnan(found[0, 1]).sum() == 9
    assert np.isfinite(means[0, 0, 0, 0])
    assert np.isnan(means[0, 1, 0, 0])


RNG = np.random.default_rng(0)
WIDE = [node("Conv", "x w", "a"), node("Sigmoid", "a", "b"), node("Mul", "a b", "c")]
FILTER = [node("Conv", "c d", "e", group=6, pads=[1, 1, 1, 1]), node("Relu", "e", "f")]
MEAN = node("GlobalAveragePool", "f", "m")
GATE = [
    node("Conv", "m down", "g"),
    node("Relu", "g", "h"),
    node("Conv", "h up", "i"),
    node("Sigmoid", "i", "j"),
    node("Mul", "f j", "k"),
]
LAST = node("Conv", "k last", "y")
CONSTANTS = {"w": sparse(RNG, 6, 4, 1, 1), "d": RNG.standard_normal((6, 1, 3, 3)).astype(np.float32)}
GATES = {"down": sparse(RNG, 2, 6, 1, 1), "up": sparse(RNG, 6, 2, 1, 1), "last": sparse(RNG, 5, 6, 1, 1)}


def built(nodes: list[onnx.NodeProto], size: tuple[int | str, int | str] = (9, 11)) -> onnx.ModelProto:
    read = {name for each in nodes for name in each.input}
    constants = {name: array for name, array in (CONSTANTS | GATES).items() if name in read}
    return model(nodes, {"x": ("n", 4, *size)}, constants, nodes[-1].output[0])


def kinds(net: onnx.ModelProto) -> list[str]:
    return [each.op_type for each in rewrite(net, lambda *_: True).model.graph.node]


def assert_same(net: onnx.ModelProto) -> None:
    content = net.SerializeToString()
    ours, theirs = InferenceSession(content), ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = {"x": RNG.standard_normal((batch, 4, 9, 11)).astype(np.float32)}
        assert largest_difference(ours.run(None, x), theirs.run(None, x)) < 1e-5
    assert ours.sparse_layers


@pytest.mark.usefixtures("every_layer_sparse")
def test_one_operator() -> None:
    net = built([*WIDE, *FILTER])
    assert kinds(net) == ["SparseDepthwise"]
    assert_same(net)


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("mean", ["GlobalAveragePool", "ReduceMean"])
def test_squeeze_excite(mean: str) -> None:
    pooled = MEAN if mean == "GlobalAveragePool" else node("ReduceMean", "f", "m", axes=[-1, 2])
    net = built([*WIDE, *FILTER, pooled, *GATE, LAST])
    assert kinds(net) == ["SparseDepthwise", "SparseConv", "SparseConv", "SparseConv"]
    assert_same(net)


@pytest.mark.usefixtures("every_layer_sparse")
def test_means_behind_a_depthwise_convolution_alone() -> None:
    nodes = [node("Sin", "x", "s"), node("Conv", "s filters", "f", group=4, pads=[1, 1, 1, 1])]
    nodes += [MEAN, node("Sigmoid", "m", "j"), node("Mul", "f j", "k"), node("Conv", "k w", "y")]
    constants = {"filters": CONSTANTS["d"][:4], "w": CONSTANTS["w"]}
    net = model(nodes, {"x": ("n", 4, 9, 11)}, constants)
    assert kinds(net) == ["Sin", "DepthwiseConv", "Sigmoid", "SparseConv"]
    assert_same(net)


def test_dense_layers_of_a_gate_run_with_the_sparse_layer_it_belongs_to() -> None:
    net = built([*WIDE, *FILTER, MEAN, *GATE, LAST])
    chosen = rewrite(net, lambda layer, _: layer.output == "y")
    assert [layer.output for layer in chosen.layers] == ["y", "h", "j"]


@pytest.mark.parametrize("axes", [[2], [1, 2, 3]])
def test_other_means_are_left(axes: list[int]) -> None:
    net = built([*WIDE, *FILTER, node("ReduceMean", "f", "y", axes=axes)])
    assert kinds(net) == ["SparseDepthwise", "ReduceMean"]


def used_elsewhere(net: onnx.ModelProto) -> None:
    net.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))


def strided(net: onnx.ModelProto) -> None:
    net.graph.node[0].attribute.append(helper.make_attribute("strides", [1, 2]))
    del net.graph.value_info[:]


def of_unknown_size(net: onnx.ModelProto) -> None:
    net.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h"
    del net.graph.value_info[:]


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("change", [used_elsewhere, strided, of_unknown_size])
def test_two_operators(change: Any) -> None:
    net = built([*WIDE, *FILTER])
    change(net)
    assert kinds(net) == ["SparseConv", "DepthwiseConv"]
    assert_same(net)


@pytest.mark.usefixtures("every_layer_sparse")
def test_many_nonzeros_in_a_row() -> None:
    full = RNG.standard_normal((6, 30, 1, 1)).astype(np.float32)
    net = model([*WIDE, *FILTER], {"x": ("n", 30, 9, 11)}, CONSTANTS | {"w": full}, "f")
    assert kinds(net) == ["SparseConv", "DepthwiseConv"]
