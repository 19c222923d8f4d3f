"""Layers in other forms than exporters usually write run on sparse kernels, and give what ONNX Runtime gives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.explain import explain
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.sparse_layer_table import layer_metadata

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
node = helper.make_node


def net(
    nodes: list[onnx.NodeProto], shape: list[Any], weights: dict[str, Any], kind: int = FLOAT, **facts: Any
) -> bytes:
    """A model from x to y."""
    values = [helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", kind, None)]
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


W = sparse_weight(0.8, (12, 30))
BIAS = np.linspace(-1, 1, 12, dtype=np.float32)
FILTER = sparse_weight(0.7, (6, 4, 3, 3))
UP = sparse_weight(0.7, (4, 6, 2, 2))
Q = np.where(W == 0, 0, np.round(W * 40)).astype(np.int8)
UNSIGNED = (Q.astype(np.int32) + 128).astype(np.uint8)
SCALES = np.linspace(0.01, 0.03, 12, dtype=np.float32)
BIAS6 = np.arange(6, dtype=np.float32)
HALF_W = {"w": W.T.astype(np.float16), "b": BIAS.astype(np.float16)}
FORMS: dict[str, bytes] = {
    **{
        f"auto_pad {kind} stride {stride} kernel {kernel}": net(
            [node("Conv", ["x", "w"], ["y"], auto_pad=kind, strides=[stride] * 2)],
            ["n", 4, 9, 10],
            {"w": sparse_weight(0.7, (6, 4, *kernel))},
        )
        for kind in ("SAME_UPPER", "SAME_LOWER", "VALID")
        for stride, kernel in ((1, (3, 3)), (1, (2, 4)), (2, (3, 2)), (3, (5, 1)))
    },
    "auto_pad, free sides": net(
        [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER")], ["n", 4, "h", "v"], {"w": FILTER}
    ),
    "weights on the left, rank 2": net([node("MatMul", ["w", "x"], ["y"])], [30, "n"], {"w": W}),
    "weights on the left, rank 3": net(
        [node("MatMul", ["w", "x"], ["a"]), node("Relu", ["a"], ["y"])], ["n", 30, "t"], {"w": W}
    ),
    "rank 3": net([node("MatMul", ["x", "w"], ["y"])], ["n", "t", 30], {"w": W.T[None]}),
    "rank 3, with bias": net(
        [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["y"])], ["n", 5, 30], {"w": W.T[None], "b": BIAS}
    ),
    "behind a transpose": net(
        [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])], ["n", 30], {"w": W}
    ),
    "behind a reshape": net(
        [node("Reshape", ["w", "s"], ["t"]), node("Gemm", ["x", "t"], ["y"], transB=1)],
        ["n", 30],
        {"w": W.reshape(4, 3, 30), "s": np.array([12, -1])},
    ),
    "behind a cast": net(
        [node("Cast", ["w"], ["c"], to=FLOAT), node("Gemm", ["x", "c"], ["y"], transB=1)],
        ["n", 30],
        {"w": W.astype(np.float16)},
    ),
    "behind a cast and a transpose": net(
        [
            node("Cast", ["w"], ["c"], to=FLOAT),
            node("Transpose", ["c"], ["t"]),
            node("MatMul", ["x", "t"], ["y"]),
        ],
        ["n", 3, 30],
        {"w": W.astype(np.float16)},
    ),
    "dequantized": net(
        [node("DequantizeLinear", ["w", "s"], ["d"]), node("Gemm", ["x", "d"], ["y"], transB=1)],
        ["n", 30],
        {"w": Q, "s": np.float32(0.02)},
    ),
    "dequantized by row": net(
        [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0), node("Gemm", ["x", "d"], ["y"], transB=1)],
        ["n", 30],
        {"w": Q, "s": SCALES, "z": np.zeros(12, np.int8)},
    ),
    "dequantized from unsigned, with a zero point": net(
        [node("DequantizeLinear", ["w", "s", "z"], ["d"]), node("Gemm", ["x", "d"], ["y"], transB=1)],
        ["n", 30],
        {"w": UNSIGNED, "s": np.float32(0.02), "z": np.uint8(128)},
    ),
    "dequantized filters": net(
        [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=0), node("Conv", ["x", "d"], ["y"])],
        ["n", 4, 9, 9],
        {"w": np.round(FILTER * 40).astype(np.int8), "s": SCALES[:6], "z": np.zeros(6, np.int8)},
    ),
    "dequantized on the left": net(
        [node("DequantizeLinear", ["w", "s"], ["d"]), node("MatMul", ["d", "x"], ["y"])],
        ["n", 30, 4],
        {"w": Q, "s": np.float32(0.02)},
    ),
    "transposed input": net(
        [node("Gemm", ["x", "w", "b"], ["y"], transA=1, transB=1, alpha=0.5)], [30, "n"], {"w": W, "b": BIAS}
    ),
    "einsum": net([node("Einsum", ["x", "w"], ["y"], equation="bsk, kn -> bsn")], ["n", 3, 30], {"w": W.T}),
    "einsum, transposed": net([node("Einsum", ["x", "w"], ["y"], equation="bk,nk->bn")], ["n", 30], {"w": W}),
    "einsum, weights first": net([node("Einsum", ["w", "x"], ["y"], equation="nk,bk->bn")], ["n", 30], {"w": W}),
    "upsampling": net(
        [node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2])], ["n", 4, 5, 6], {"w": UP, "b": BIAS6}
    ),
    "upsampling, free sides": net(
        [node("ConvTranspose", ["x", "w"], ["y"], strides=[3, 3])],
        ["n", 4, "h", "v"],
        {"w": sparse_weight(0.7, (4, 6, 3, 3))},
    ),
    "a transposed convolution of stride 1": net(
        [node("ConvTranspose", ["x", "w", "b"], ["a"], pads=[1, 0, 1, 2]), node("Relu", ["a"], ["y"])],
        ["n", 4, 7, 8],
        {"w": sparse_weight(0.7, (4, 6, 3, 4)), "b": BIAS6},
    ),
    "a dilated transposed convolution": net(
        [node("ConvTranspose", ["x", "w"], ["y"], dilations=[2, 1])], ["n", 4, 7, 8], {"w": UP}
    ),
    "half precision": net([node("Gemm", ["x", "w", "b"], ["y"])], ["n", 30], HALF_W, HALF),
    "a filter in half precision": net(
        [node("Conv", ["x", "w"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["y"])],
        ["n", 4, 9, 9],
        {"w": FILTER.astype(np.float16)},
        HALF,
    ),
}


def feeds(model: bytes, batch: int) -> dict[str, Any]:
    value = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).get_inputs()[0]
    kind = np.float16 if "float16" in value.type else np.float32
    shape = [{"n": batch, "t": 7, "h": 5, "v": 8}.get(axis, axis) for axis in value.shape]
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(kind)}


def assert_same(model: bytes, sparse: int, batch: int = 3) -> InferenceSession:
    ours, theirs = InferenceSession(model), ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    x = feeds(model, batch)
    (found,), (expected,) = ours.run(None, x), theirs.run(None, x)
    assert found.dtype == expected.dtype
    assert largest_difference([found], [expected]) < (2e-3 if found.dtype == np.float16 else 1e-5)
    assert len(ours.sparse_layers) == sparse
    return ours


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("form", FORMS)
def test_other_forms_are_sparse(form: str) -> None:
    for batch in (1, 3, 9):
        assert_same(FORMS[form], sparse=1, batch=batch)
    rewritten = rewrite(onnx.load_from_string(FORMS[form]), lambda *_: True)
    left = {each.op_type for each in rewritten.model.graph.node if each.domain != "rigl_compress"}
    assert left <= {"Cast", "Transpose", "Relu"}
    assert "w" not in {tensor.name for tensor in rewritten.model.graph.initializer}, "the dense weights are dropped"
    (about,) = layer_metadata(rewritten.layers).values()
    assert about["weight"] in {name for each in onnx.load_from_string(FORMS[form]).graph.node for name in each.input}


QDQ = [
    node("QuantizeLinear", ["x", "s"], ["q"]),
    node("DequantizeLinear", ["q", "s"], ["xd"]),
    node("DequantizeLinear", ["w", "s", "z"], ["d"]),
    node("MatMul", ["xd", "d"], ["y"]),
]
STAY: dict[str, tuple[bytes, str]] = {
    "auto_pad of unknown sides": (
        net(
            [node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])], ["n", 4, "h", "v"], {"w": FILTER}
        ),
        "padding by auto_pad depends on the size of the image",
    ),
    "overlapping": (
        net([node("ConvTranspose", ["x", "w"], ["y"], strides=[1, 2])], ["n", 4, 5, 5], {"w": UP}),
        "no sparse kernel for a ConvTranspose",
    ),
    "another matrix for each sample": (
        net([node("MatMul", ["x", "w"], ["y"])], [2, 3, 30], {"w": np.stack([W.T, W.T])}),
        "a product with another matrix for each sample",
    ),
    "rank 3 by rank 2": (
        net([node("MatMul", ["x", "w"], ["y"])], ["n", 30], {"w": W.T[None]}),
        "a product with another matrix for each sample",
    ),
    "einsum with a sum": (
        net([node("Einsum", ["x", "w"], ["y"], equation="bk,kn->n")], ["n", 30], {"w": W.T}),
        "no sparse kernel for Einsum 'bk,kn->n'",
    ),
    "integers": (
        net(
            QDQ,
            ["n", 30],
            {"w": (Q.T.astype(np.int32) + 128).astype(np.uint8), "s": np.float32(0.02), "z": np.uint8(128)},
        ),
        "the layer computes in integers",
    ),
}


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("case", STAY)
def test_what_stays_dense_says_why(case: str) -> None:
    model, reason = STAY[case]
    assert_same(model, sparse=0)
    (row,) = explain(model)
    assert row.reason.startswith(reason)


@pytest.mark.usefixtures("every_layer_sparse")
@pytest.mark.parametrize("change", [lambda w: w, lambda w: w.astype(np.float16)], ids=["float32", "float16"])
def test_a_half_network_of_several_layers(change: Callable[[Any], Any]) -> None:
    kind = HALF if change(W).dtype == np.float16 else FLOAT
    nodes = [
        node("Conv", ["x", "f"], ["a"], pads=[1] * 4),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "g"], ["c"]),
        node("Add", ["c", "b"], ["d"]),
        node("Flatten", ["d"], ["e"]),
        node("MatMul", ["e", "w"], ["y"]),
    ]
    weights = {
        "f": change(sparse_weight(0.7, (6, 4, 3, 3))),
        "g": change(sparse_weight(0.7, (6, 6, 1, 1))),
        "w": change(sparse_weight(0.7, (150, 10))),
    }
    assert_same(net(nodes, ["n", 4, 5, 5], weights, kind), sparse=3)


@pytest.mark.usefixtures("every_layer_sparse")
def test_dequantized_weights_that_something_else_reads_stay() -> None:
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"]),
        node("MatMul", ["x", "d"], ["a"]),
        node("ReduceSum", ["d"], ["r"], keepdims=0),
        node("Add", ["a", "r"], ["y"]),
    ]
    assert_same(net(nodes, ["n", 30], {"w": Q.T.copy(), "s": np.float32(0.02)}), sparse=1)
