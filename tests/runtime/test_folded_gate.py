"""Gates before sparse convolutions go into them: no product is left for them, and the outputs are the same."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx_graphs import model, node

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession

pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
]
RNG = np.random.default_rng(0)
MEAN, SIGMOID = node("GlobalAveragePool", "x", "m"), node("Sigmoid", "m", "g")
GATED, CONV = node("Mul", "x g", "p"), node("Conv", "p w", "y")
BESIDE = node("Neg", "p", "z")


def weights(*shape: int) -> Any:
    """Some zeros among random numbers."""
    drawn = RNG.standard_normal(shape).astype(np.float32)
    return np.where(RNG.random(shape) < 0.4, np.float32(0), drawn)


POINTWISE, SPATIAL = {"w": weights(7, 6, 1, 1)}, {"w": weights(7, 6, 3, 3)}
FOLDED: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], tuple[int, int]]] = {
    "pointwise": ([MEAN, SIGMOID, GATED, CONV], POINTWISE, (5, 9)),
    "turned round": ([MEAN, SIGMOID, node("Mul", "g x", "p"), CONV], POINTWISE, (5, 9)),
    "wide": ([MEAN, SIGMOID, GATED, CONV], POINTWISE, (40, 33)),
    "3×3": ([MEAN, SIGMOID, GATED, node("Conv", "p w", "y", pads=[1, 1, 1, 1])], SPATIAL, (8, 8)),
    "stride": ([MEAN, SIGMOID, GATED, node("Conv", "p w", "y", strides=[2, 2])], SPATIAL, (9, 12)),
}
LEFT: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], tuple[int, int]]] = {
    "a factor per pixel": ([node("Sigmoid", "x", "g"), GATED, CONV], POINTWISE, (5, 9)),
    "one for all channels": (
        [node("ReduceMean", "x", "g", axes=[1, 2, 3], keepdims=1), GATED, CONV],
        POINTWISE,
        (5, 9),
    ),
    "used elsewhere": ([MEAN, SIGMOID, GATED, BESIDE, CONV, node("Neg", "z", "u")], POINTWISE, (5, 9)),
}


def built(nodes: list[onnx.NodeProto], arrays: dict[str, Any], size: tuple[int, int]) -> onnx.ModelProto:
    return model(nodes, {"x": ("n", 6, *size)}, arrays)


def assert_same(net: onnx.ModelProto, size: tuple[int, int]) -> None:
    content = net.SerializeToString()
    ours, theirs = InferenceSession(content), ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    for batch in (1, 3):
        x = {"x": RNG.standard_normal((batch, 6, *size)).astype(np.float32)}
        assert largest_difference(ours.run(None, x), theirs.run(None, x)) < 1e-5
    assert len(ours.sparse_layers) == 1


@pytest.mark.parametrize("case", FOLDED)
def test_folded(case: str) -> None:
    net = built(*FOLDED[case])
    kinds = [each.op_type for each in rewrite(net, lambda *_: True).model.graph.node]
    assert kinds == ["GlobalAveragePool", "Sigmoid", "SparseConv"]
    assert_same(net, FOLDED[case][2])


@pytest.mark.parametrize("case", LEFT)
def test_left(case: str) -> None:
    net = built(*LEFT[case])
    if case == "used elsewhere":
        net.graph.output.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, None))
    assert "Mul" in [each.op_type for each in rewrite(net, lambda *_: True).model.graph.node]
    assert_same(net, LEFT[case][2])
