"""Which weights of a graph are pruned, and what is said about the others."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_layers import draw, model_of, perceptron

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.prunable_layers import find_prunable


def node(kind: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def test_layers_of_a_perceptron() -> None:
    found = find_prunable(perceptron())
    assert [(each.name, each.rows, each.columns, each.transposed) for each in found.layers] == [
        ("w1", 64, 32, False),
        ("w2", 64, 64, True),
        ("w3", 10, 64, True),
    ]
    assert [each.bias and each.bias.name for each in found.layers] == ["b1", "b2", ""]
    assert found.dense == {}


SQUARE = {"w": draw(20, 20)}
CASES = {
    "left factor": ([node("MatMul", "w x", "y")], SQUARE, "the left factor of a product"),
    "transposed inputs": ([node("Gemm", "x w", "y", transA=1)], SQUARE, "its inputs are transposed"),
    "another reader": ([node("MatMul", "x w", "a"), node("Add", "a w", "y")], SQUARE, "read by other operators, too"),
    "two kinds": (
        [node("MatMul", "x w", "a"), node("Gemm", "a w", "y", transB=1)],
        SQUARE,
        "read by operators of different kinds",
    ),
    "not finite": ([node("MatMul", "x w", "y")], {"w": np.full((20, 20), np.nan, np.float32)}, "not finite"),
    "a batch": ([node("MatMul", "x w", "y")], {"w": draw(1, 20, 20)}, "a batch of matrices"),
    "no product": ([node("Add", "x w", "y")], SQUARE, "read by Add"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_left_alone_is_said(case: str) -> None:
    nodes, weights, reason = CASES[case]
    found = find_prunable(model_of(nodes, [[20, 20]], weights))
    assert found.layers == ()
    assert found.dense == {"w": reason}


def test_inputs_outputs_and_subgraphs_are_left_alone() -> None:
    model = model_of([node("MatMul", "x w", "y")], [[20, 20]], SQUARE)
    as_input, as_output = onnx.ModelProto(), onnx.ModelProto()
    as_input.CopyFrom(model)
    as_output.CopyFrom(model)
    value = helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [20, 20])
    as_input.graph.input.append(value)
    as_output.graph.output.append(value)
    assert "callers can replace it" in find_prunable(as_input).dense["w"]
    assert "an output" in find_prunable(as_output).dense["w"]
    inner = helper.make_graph(
        [node("MatMul", "x v", "z")], "inner", [], [helper.make_empty_tensor_value_info("z")],
        [numpy_helper.from_array(draw(20, 20), "v")],
    )  # fmt: skip
    nodes = [node("If", "c", "y", then_branch=inner, else_branch=inner)]
    found = find_prunable(model_of(nodes, [[20, 20]], {"c": np.array(True)}))
    assert found.dense == {"v": "in a sub-graph"}


def test_small_weights_and_integers_are_said() -> None:
    weights = {
        "w": draw(20, 20), "small": draw(20, 4), "i": np.ones((4, 20), np.int8), "j": np.ones((20, 20), np.int8),
        "scale": np.array(0.1, np.float32), "one": np.ones((1, 4), np.float32),
    }  # fmt: skip
    nodes = [
        node("MatMul", "x w", "a"), node("MatMul", "a small", "b"), node("Add", "b one", "c"),
        node("DequantizeLinear", "i scale", "d"), node("MatMul", "c d", "e"),
        node("DynamicQuantizeLinear", "e", "q"),
    ]  # fmt: skip
    nodes[-1].output.extend(["qs", "qz"])
    nodes += [node("MatMulInteger", "q j", "r"), node("Cast", "r", "y", to=onnx.TensorProto.FLOAT)]
    assert find_prunable(model_of(nodes, [[20, 20]], weights)).dense == {
        "small": "fewer than 256 weights",
        "i": "integers behind DequantizeLinear",
        "j": "integers, read by MatMulInteger",
    }


def test_a_model_of_depthwise_convolutions_says_why() -> None:
    found = find_prunable(model_of([node("Conv", "x w", "y", group=40)], [["n", 40, 8, 8]], {"w": draw(40, 1, 3, 3)}))
    with pytest.raises(InputError, match=r"net has no weight .*\(w: reads one channel per output\)"):
        found.check_some("net")


def test_a_shared_weight_is_one_layer() -> None:
    found = find_prunable(model_of([node("MatMul", "x w", "a"), node("MatMul", "a w", "y")], [[20, 20]], SQUARE))
    assert [(each.name, each.uses) for each in found.layers] == [("w", (0, 1))]


def test_depthwise_convolutions_are_told_apart() -> None:
    weights = {"w": draw(40, 1, 3, 3), "v": draw(40, 20, 3, 3)}
    nodes = [node("Conv", "x w", "a", group=40), node("Conv", "a v", "y", group=2)]
    found = find_prunable(model_of(nodes, [["n", 40, 8, 8]], weights))
    assert [(each.name, each.depthwise, each.groups) for each in found.layers] == [("w", True, 40), ("v", False, 2)]


def test_patterns_leave_layers_dense() -> None:
    found = find_prunable(perceptron()).without(["w[13]"])
    assert [each.name for each in found.layers] == ["w2"]
    assert found.dense == {"w1": "--dense w[13]", "w3": "--dense w[13]"}
