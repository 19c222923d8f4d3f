"""Selections before sparse layers go into their weights: no operator is left for them, and the outputs are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnx_graphs import model, node

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import sparse_runtime_export as export
from rigl_compress.runtime.cost_model import runs_faster
from rigl_compress.runtime.file_contents import read_contents
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession
from rigl_compress.runtime.sparse_runtime_export import export_sparse_runtime

pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
]
RNG = np.random.default_rng(0)
GATHER, GEMM = node("Gather", "x i", "p", axis=1), node("Gemm", "p w", "y", transB=1)
FLATTEN = node("Flatten", "p", "f")
PICKED = np.array([5, 1, 2, 9])


def weights(*shape: int) -> Any:
    """Some zeros among random numbers."""
    drawn = RNG.standard_normal(shape).astype(np.float32)
    return np.where(RNG.random(shape) < 0.4, np.float32(0), drawn)


def slicing(start: int, end: int, axis: int, *step: int) -> dict[str, Any]:
    names = ("start", "end", "axis", "step")
    return {name: np.array([value]) for name, value in zip(names, (start, end, axis, *step), strict=False)}


FOLDED: dict[str, tuple[list[onnx.NodeProto], tuple[Any, ...], dict[str, Any]]] = {
    "gemm": ([GATHER, GEMM], ("n", 10), {"i": PICKED, "w": weights(3, 4)}),
    "from the end": ([GATHER, GEMM], ("n", 10), {"i": PICKED - 10, "w": weights(3, 4)}),
    "sequence": (
        [node("Gather", "x i", "p", axis=-1), node("MatMul", "p w", "y")],
        ("n", "t", 10),
        {"i": PICKED, "w": weights(4, 3)},
    ),
    "slice": (
        [node("Slice", "x start end axis", "p"), GEMM],
        ("n", 10),
        {**slicing(2, 6, -1), "w": weights(3, 4)},
    ),
    "slice to the end": (
        [node("Slice", "x start end axis step", "p"), GEMM],
        ("n", 10),
        {**slicing(-4, 2**63 - 1, 1, 1), "w": weights(3, 4)},
    ),
    "convolution": (
        [GATHER, node("Conv", "p w b", "c", pads=[1] * 4, strides=[2, 2]), node("Relu", "c", "y")],
        ("n", 10, 7, 7),
        {"i": np.arange(8) + 1, "w": weights(3, 8, 3, 3), "b": weights(3)},
    ),
    "groups": (
        [GATHER, node("Conv", "p w", "y", group=2)],
        ("n", 8, 6, 6),
        {"i": np.array([5, 1, 2, 7]), "w": weights(6, 2, 3, 3)},
    ),
    "one dimension": (
        [GATHER, node("Conv", "p w", "y")],
        ("n", 8, 9),
        {"i": np.array([5, 1, 2, 7]), "w": weights(6, 4, 3)},
    ),
    "sliced channels": (
        [node("Slice", "x start end axis", "p"), node("Conv", "p w", "y")],
        ("n", 8, 6, 6),
        {**slicing(0, 5, 1), "w": weights(6, 5, 1, 1)},
    ),
    "behind a flatten": (
        [node("Flatten", "x", "f"), node("Gather", "f i", "p", axis=1), GEMM],
        ("n", 1, 5, 2),
        {"i": PICKED, "w": weights(3, 4)},
    ),
    "before a flatten": (
        [GATHER, FLATTEN, node("Gemm", "f w", "y", transB=1)],
        ("n", 10, 2, 3),
        {"i": PICKED, "w": weights(3, 24)},
    ),
    "rows before a reshape": (
        [node("Gather", "x i", "p", axis=2), node("Reshape", "p s", "f"), node("MatMul", "f w", "y")],
        ("n", 2, 5, 3),
        {"i": np.array([4, 0, 1]), "s": np.array([-1, 18]), "w": weights(18, 4)},
    ),
}


def both(built: onnx.ModelProto) -> tuple[InferenceSession, list[str]]:
    """Open a model, compare with ONNX Runtime for two batches, and give what is left of its operators."""
    content = built.SerializeToString()
    ours, theirs = InferenceSession(content), ort.InferenceSession(content)
    for batch in (1, 9):
        shape = [axis if isinstance(axis, int) else batch for axis in theirs.get_inputs()[0].shape]
        inputs = {"x": np.random.default_rng(batch).standard_normal(shape).astype(np.float32)}
        assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < 1e-5
    return ours, [each.op_type for each in rewrite(built, lambda *_: True).model.graph.node]


@pytest.mark.parametrize("name", FOLDED)
def test_a_selection_goes_into_the_weights(name: str) -> None:
    nodes, shape, constants = FOLDED[name]
    ours, left = both(model(nodes, {"x": shape}, constants))
    assert len(ours.sparse_layers) == 1
    kind = "SparseConv" if any(each.op_type == "Conv" for each in nodes) else "SparseMatMul"
    assert left == (["Flatten"] if "flatten" in name or "reshape" in name else []) + [kind]


LEFT: dict[str, tuple[list[onnx.NodeProto], tuple[Any, ...], dict[str, Any]]] = {
    "twice the same": ([GATHER, GEMM], ("n", 10), {"i": np.array([5, 1, 5, 9]), "w": weights(3, 4)}),
    "few of many": ([GATHER, GEMM], ("n", 1000), {"i": PICKED, "w": weights(3, 4)}),
    "samples": (
        [node("Gather", "x i", "p", axis=0), node("Gemm", "p w", "y", transB=1)],
        (12, 4),
        {"i": PICKED, "w": weights(3, 4)},
    ),
    "places in time": (
        [GATHER, node("MatMul", "p w", "y")],
        ("n", 10, 4),
        {"i": PICKED, "w": weights(4, 3)},
    ),
    "pixels": (
        [node("Gather", "x i", "p", axis=3), node("Conv", "p w", "y")],
        ("n", 2, 5, 10),
        {"i": PICKED, "w": weights(4, 2, 1, 1)},
    ),
    "every other": (
        [node("Slice", "x start end axis step", "p"), GEMM],
        ("n", 10),
        {**slicing(0, 8, 1, 2), "w": weights(3, 4)},
    ),
    "unknown size": (
        [node("Reshape", "x s", "r"), node("Gather", "r i", "p", axis=1), GEMM],
        ("n", 10),
        {"s": np.array([1, -1]), "i": PICKED, "w": weights(3, 4)},
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_a_selection_of_features_stays(name: str) -> None:
    nodes, shape, constants = LEFT[name]
    _, left = both(model(nodes, {"x": shape}, constants))
    assert {"Gather", "Slice"} & set(left)


def test_a_selection_that_others_use_stays_for_them() -> None:
    nodes = [GATHER, node("Gemm", "p w", "z", transB=1), node("ReduceSum", "p a", "s"), node("Add", "z s", "y")]
    built = model(nodes, {"x": ("n", 10)}, {"i": PICKED, "w": weights(3, 4), "a": np.array([1])})
    _, left = both(built)
    assert left == ["Gather", "SparseMatMul", "ReduceSum", "Add"]


def test_a_selection_that_an_inner_graph_uses_stays_for_it() -> None:
    """However deep it lies."""
    sizes = {"x": ("n", 10)}
    value = helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)
    deep = helper.make_graph([node("ReduceSum", "p a", "inner")], "deep", [], [value])
    outer = helper.make_tensor_value_info("outer", onnx.TensorProto.FLOAT, None)
    middle = helper.make_graph([node("If", "t", "outer", then_branch=deep, else_branch=deep)], "middle", [], [outer])
    nodes = [
        GATHER,
        node("Gemm", "p w", "z", transB=1),
        node("If", "t", "s", then_branch=middle, else_branch=middle),
        node("Add", "z s", "y"),
    ]
    constants = {"i": PICKED, "w": weights(3, 4), "a": np.array([1]), "t": np.array([True])}
    _, left = both(model(nodes, sizes, constants))
    assert left == ["Gather", "SparseMatMul", "If", "Add"]


def test_a_selection_counts_for_what_a_layer_gains() -> None:
    """A layer of a few inputs gains nothing by itself; it does if that spares a Gather."""
    kept = np.arange(0, 784, 19)
    few = np.where(RNG.random((256, len(kept))) < 0.05, np.float32(1), np.float32(0))
    picking = model([GATHER, GEMM], {"x": ("n", 784)}, {"i": kept, "w": few})
    plain = model([node("Gemm", "x w", "y", transB=1)], {"x": ("n", len(kept))}, {"w": few})
    assert [len(rewrite(each, runs_faster).layers) for each in (picking, plain)] == [1, 0]


def test_a_file_for_other_hosts_has_no_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "runs_faster", lambda *_: True)
    nodes, shape, constants = FOLDED["gemm"]
    onnx.save(model(nodes, {"x": shape}, constants), tmp_path / "plain.onnx")
    written = export_sparse_runtime(tmp_path / "plain.onnx", tmp_path / "fast.onnx")
    assert [each.op_type for each in onnx.load(written.path).graph.node] == ["SparseMatMul"]
    assert written.difference < 1e-5
    assert read_contents(written.path).tensors[0].shape == (3, 4)  # as in the source
