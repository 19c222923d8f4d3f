"""Whole runs over graphs whose constants are also outputs, inputs, shared, left factors, or read in sub-graphs."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_layers import correlated, draw

import rigl_compress as rc
from rigl_compress.exporters.restore import restore

node, info = helper.make_node, helper.make_tensor_value_info
WEIGHTS = {"a": draw(32, 40, seed=1), "b": draw(40, 24, seed=2), "c": draw(1, 32, seed=3), "e": draw(40, 40, seed=4)}
CHAIN = [node("MatMul", ["x", "a"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "b"], ["y"])]


def graph(nodes: list[onnx.NodeProto], *, inputs: str = "", outputs: str = "") -> onnx.ModelProto:
    read = {name for each in nodes for name in (*each.input, *inputs, *outputs)}
    stored = {name: each for name, each in WEIGHTS.items() if name in read or nodes[1].op_type in ("If", "Loop")}
    given = [info("x", TensorProto.FLOAT, ["n", 32])]
    made = [info("y", TensorProto.FLOAT, ["n", 24])]
    given += [info(name, TensorProto.FLOAT, WEIGHTS[name].shape) for name in inputs]
    made += [info(name, TensorProto.FLOAT, WEIGHTS[name].shape) for name in outputs]
    arrays = [numpy_helper.from_array(each, name) for name, each in stored.items()]
    arrays.append(numpy_helper.from_array(np.array(3), "three"))
    arrays.append(numpy_helper.from_array(np.array(True), "yes"))
    found = helper.make_graph(nodes, "g", given, made, arrays)
    return helper.make_model(found, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branches() -> onnx.ModelProto:
    inner = [
        helper.make_graph([node("MatMul", ["h", "e"], [f"{name}o"])], name, [], [info(f"{name}o", 1, None)])
        for name in ("then", "else")
    ]
    either = node("If", ["yes"], ["r"], then_branch=inner[0], else_branch=inner[1])
    return graph([CHAIN[0], either, CHAIN[2]])


def loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [node("MatMul", ["v", "e"], ["o"]), node("Identity", ["again"], ["more"])],
        "body",
        [info("i", TensorProto.INT64, []), info("again", TensorProto.BOOL, []), info("v", 1, None)],
        [info("more", TensorProto.BOOL, []), info("o", 1, None)],
    )
    return graph([CHAIN[0], node("Loop", ["three", "", "h"], ["r"], body=body), CHAIN[2]])


def left() -> onnx.ModelProto:
    return graph(
        [node("MatMul", ["c", "a"], ["k"]), node("MatMul", ["x", "a"], ["h"]), node("Add", ["h", "k"], ["r"]), CHAIN[2]]
    )


def only_left() -> onnx.ModelProto:
    return graph(
        [node("Relu", ["x"], ["u"]), node("MatMul", ["c", "a"], ["k"]), node("MatMul", ["k", "e"], ["l"]),
         node("ReduceSum", ["u"], ["s"]), node("Add", ["l", "s"], ["r"]), CHAIN[2]]
    )  # fmt: skip


GRAPHS = {
    "output": (graph(CHAIN, outputs="a"), {"a": "an output of the model, too"}, ["b"]),
    "other output": (graph(CHAIN, outputs="c"), {}, ["a", "b"]),
    "input": (graph(CHAIN, inputs="a"), {"a": "an input of the model, too: callers can replace it"}, ["b"]),
    "both": (graph(CHAIN, inputs="a", outputs="a"), {"a": "an input of the model, too"}, ["b"]),
    "shared": (graph([*CHAIN[:2], node("MatMul", ["r", "e"], ["t"]), node("MatMul", ["t", "e"], ["q"]),
                      node("MatMul", ["q", "b"], ["y"])]), {}, ["a", "e", "b"]),
    "if": (branches(), {"e": "read in a sub-graph"}, ["a", "b"]),
    "loop": (loop(), {"e": "read in a sub-graph"}, ["a", "b"]),
    "left": (left(), {}, ["a", "b"]),
    "only left": (only_left(), {}, ["a", "e", "b"]),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_whole_runs(tmp_path: Path, case: str) -> None:
    model, dense, pruned = GRAPHS[case]
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    x = correlated(160, 32)
    np.savez(tmp_path / "data.npz", x=x)
    settings = {"calibration": tmp_path / "data.npz", "timing": None, "keep_dead_channels": True}
    found = rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", **settings)
    assert sorted(each.name for each in found.layers) == sorted(pruned)
    assert found.dense.keys() == dense.keys()
    assert all(found.dense[name].startswith(reason) for name, reason in dense.items())
    assert found.sparsity == pytest.approx(0.5, abs=0.01)
    wanted, got = (ort.InferenceSession(tmp_path / name).run(None, {"x": x}) for name in ("net.onnx", "small.onnx"))
    assert [each.shape for each in wanted] == [each.shape for each in got]
    kept = {each.name: each for each in restore(onnx.load(found.path)).graph.initializer}
    for name in dense:
        assert numpy_helper.to_array(kept[name]).tobytes() == WEIGHTS[name].tobytes()
