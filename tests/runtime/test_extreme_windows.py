"""Windows far larger than their images, and kernels far larger than their weights: right numbers, bounded work."""

import resource
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import Conv, Depthwise, Window
from rigl_compress.runtime.packed_weights import pack_matrix
from rigl_compress.runtime.session import InferenceSession, register

Array = NDArray[Any]
pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
CPU = ["CPUExecutionProvider"]


def model_of(node: onnx.NodeProto, rank: int, **weights: Array) -> bytes:
    """A model of one operator; nothing about the shapes of x and y is known but their rank."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n}{a}" for a in range(rank)]) for n in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "g", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("rigl_compress", 2)]
    content: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return content


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize(("pads", "strides"), [((1, 1, 0, 0), (2, 2)), ((0, 2, 0, 0), (1, 3)), ((1, 0, 1, 0), (4, 1))])
def test_a_pixel_under_padding(pads: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """The only place of the filter lies on the padding: zeros and the bias."""
    weight, bias = np.full((2, 3, 1, 1), 2.7, np.float32), np.array([0.5, -1], np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=pads, strides=strides)
    model = model_of(node, 4, w=weight, b=bias)
    ours, theirs = InferenceSession(model), ort.InferenceSession(model, providers=CPU)
    assert ours.sparse_layers
    for size in [(1, 1), (2, 2), (1, 1), (1, 5)]:
        x = {"x": np.full((1, 3, *size), 2, np.float32)}
        assert largest_difference(ours.run(None, x), theirs.run(None, x)) < 1e-5


def test_rows_of_the_filter_that_share_a_long_run() -> None:
    """Rows of a filter read one run of pixels: here one that is longer than an index within a block can count."""
    rng = np.random.default_rng(0)
    weight, x = np.zeros((1, 1, 16384, 1), np.float32), rng.random((1, 1, 16391, 40), np.float32)
    weight[0, 0, ::2, 0] = rng.random(8192)
    expected = [weight[0, 0, :, 0].astype(np.float64) @ x[0, 0, row : row + 16384] for row in range(8)]
    np.testing.assert_allclose(Conv(weight)(x)[0, 0], expected, rtol=1e-4)


def sparse_conv(kernel: list[int], pads: list[int], packed: Array, **settings: list[int]) -> ort.InferenceSession:
    """A session of one sparse convolution, as a file from anywhere could have it."""
    defaults = {"strides": [1, 1], "dilations": [1, 1], "kernel_shape": kernel, "pads": pads, **settings}
    node = helper.make_node("SparseConv", ["x", "w"], ["y"], domain="rigl_compress", **defaults)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    register(options)
    return ort.InferenceSession(model_of(node, 4, w=packed), options, providers=CPU)


def packed_row(columns: int, places: dict[int, float]) -> Array:
    """One row of packed weights of any width."""
    width = "<u2" if columns <= 65536 else "<u4"
    head = pack_matrix(np.full((1, 1), 1 / 3, np.float32))[:32].copy()
    head[12:16], head[16:24] = np.frombuffer(np.uint32(columns), np.uint8), np.frombuffer(np.uint64(len(places)), "u1")
    head[24:28] = np.frombuffer(np.uint32(np.dtype(width).itemsize), np.uint8)
    parts = [head.tobytes(), np.uint32(len(places)).tobytes(), np.array([*places.values()], "<f4").tobytes()]
    return np.frombuffer(b"".join([*parts, np.array([*places], width).tobytes()]), np.uint8)


def test_a_filter_far_larger_than_its_weights() -> None:
    """65536 × 65535 places and two weights: work goes by the weights."""
    kernel, pads = [65536, 65535], [32768, 32768, 32768, 32768]
    last = 65536 * 65535 - 1
    session = sparse_conv(kernel, pads, packed_row(65536 * 65535, {0: 2.0, last: 3.0}))
    found = session.run(None, {"x": np.full((1, 1, 1, 1), 5, np.float32)})[0]
    assert found.shape == (1, 1, 2, 3)
    assert not found.any(), "the image lies under neither of the two"


def test_a_wide_filter_on_a_narrow_image() -> None:
    """All of 65536 places are used: planes for each of them would take gigabytes."""
    places = {n: 1.0 + n % 3 for n in range(65536)}
    session = sparse_conv([1, 65536], [0, 34000, 0, 34000], packed_row(65536, places))
    x = np.arange(1, 601, dtype=np.float32)
    found = session.run(None, {"x": x.reshape(1, 1, 1, -1)})[0].reshape(-1)
    padded = np.pad(x, 34000).astype(np.float64)
    weights = np.array([*places.values()])
    for p in (0, 1, 500, 2000, 3064):
        np.testing.assert_allclose(found[p], padded[p : p + 65536] @ weights, rtol=1e-4)


@pytest.mark.parametrize(
    ("strides", "dilations", "pads", "kernel", "shape", "total"),
    [
        ((65536, 65536), (1, 1), (0, 0, 0, 0), (1, 1), (1, 2, 1, 1), 12),
        ((1, 1), (65536, 65536), (32767, 65536, 32767, 65536), (2, 2), (1, 2, 1, 65539), 0),
        ((65536, 1), (1, 65536), (0, 65536, 0, 65536), (1, 2), (1, 2, 1, 65539), 72),
    ],
)
def test_depthwise_windows_far_beyond_the_image(
    strides: Any, dilations: Any, pads: Any, kernel: Any, shape: Any, total: float
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weight, x = np.full((2, 1, *kernel), 2, np.float32), np.full((1, 2, 3, 3), 3, np.float32)
    found = Depthwise(weight, Window(strides, dilations, pads, 2))(x)
    assert (found.shape, found.sum()) == (shape, total)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20, "a gigabyte"
