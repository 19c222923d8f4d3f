"""FLOPs from the graph: by hand for each operator, and the torch counter's for whole networks."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import floats, graph, model, node, weight
from sparse_nets import NETS, sparse_net

from rigl_compress.exporters.onnx_costs import GraphCosts, graph_costs
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.storage_size import bitmask_bytes


def flops(costs: GraphCosts) -> tuple[float, float]:
    return costs.dense_flops, costs.sparse_flops


@pytest.mark.parametrize(
    ("attributes", "kernel", "image", "multiply_adds"),
    [
        ({}, (8, 3, 3, 3), (1, 3, 6, 6), 8 * 27 * 16),
        ({"pads": [1, 1, 1, 1]}, (8, 3, 3, 3), (1, 3, 6, 6), 8 * 27 * 36),
        ({"pads": [0, 1, 2, 0]}, (8, 3, 3, 3), (1, 3, 6, 6), 8 * 27 * 6 * 5),
        ({"strides": [2, 2], "dilations": [2, 2]}, (8, 3, 3, 3), (1, 3, 9, 9), 8 * 27 * 9),
        ({"group": 4}, (8, 1, 3, 3), (2, 4, 5, 5), 2 * 8 * 9 * 9),
        ({"auto_pad": "SAME_UPPER", "strides": [2]}, (4, 2, 5), (1, 2, 11), 4 * 10 * 6),
        ({}, (2, 2, 2, 2, 2), (1, 2, 3, 3, 3), 2 * 16 * 8),
    ],
)
def test_convolutions(
    attributes: dict[str, object], kernel: tuple[int, ...], image: tuple[int, ...], multiply_adds: int
) -> None:
    half = int(np.prod(kernel)) // 2
    made = model([node("Conv", "x w", "y", **attributes)], {"x": image}, {"w": weight(*kernel, zeros=half)})
    assert flops(graph_costs(made, floats(x=image))) == (2 * multiply_adds, multiply_adds)


def test_transposed_convolution() -> None:
    """Each input element goes through a kernel [out / groups, …], whatever the stride."""
    nodes = [node("ConvTranspose", "x w", "y", group=2, strides=[2, 2])]
    made = model(nodes, {"x": (1, 4, 5, 5)}, {"w": weight(4, 3, 2, 2, zeros=12)})
    multiply_adds = 4 * 25 * 3 * 4
    assert flops(graph_costs(made, floats(x=(1, 4, 5, 5)))) == (2 * multiply_adds, 1.5 * multiply_adds)


@pytest.mark.parametrize(("turned", "shape"), [(0, (6, 5)), (1, (5, 6))])
def test_gemm(turned: int, shape: tuple[int, int]) -> None:
    nodes = [node("Gemm", "x w", "y", transA=turned, transB=1)]
    costs = graph_costs(model(nodes, {"x": shape}, {"w": weight(3, 5, zeros=5)}), floats(x=shape))
    assert flops(costs) == (2 * 6 * 5 * 3, 2 * 6 * 5 * 2)
    assert (costs.nodes[0].name, costs.nodes[0].weight, costs.nodes[0].sparsity) == (
        "the Gemm of y",
        "w",
        pytest.approx(1 / 3),
    )


def test_products_of_matrices() -> None:
    """A weight on either side, a batch of weights, and two activations, in which zeros save nothing."""
    sequence = {"x": (2, 7, 5)}
    right = model([node("MatMul", "x w", "y")], sequence, {"w": weight(5, 3, zeros=3)})
    assert flops(graph_costs(right, floats(**sequence))) == (2 * 14 * 15, 2 * 14 * 12)
    left = model([node("MatMul", "w x", "y")], sequence, {"w": weight(3, 7, zeros=7)})
    assert flops(graph_costs(left, floats(**sequence))) == (2 * 2 * 21 * 5, 2 * 2 * 14 * 5)
    batched = model([node("MatMul", "x w", "y")], sequence, {"w": weight(2, 5, 3, zeros=15)})
    assert flops(graph_costs(batched, floats(**sequence))) == (2 * 14 * 15, 14 * 15)
    both = model([node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "y")], sequence)
    costs = graph_costs(both, floats(**sequence))
    assert flops(costs) == (2 * 2 * 7 * 7 * 5,) * 2
    assert (costs.nodes[0].weight, costs.layers, costs.sparsity) == ("", (), 0.0)


@pytest.mark.parametrize(("operator", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers(operator: str, gates: int, directions: int) -> None:
    direction = "bidirectional" if directions == 2 else "forward"
    constants = {"w": weight(directions, gates * 4, 6), "r": weight(directions, gates * 4, 4, zeros=gates * 4)}
    made = model([node(operator, "x w r", "_ y", hidden_size=4, direction=direction)], {"x": (5, 2, 6)}, constants)
    input_part, state_part = 2 * 10 * directions * gates * 24, 2 * 10 * directions * gates * 16
    costs = graph_costs(made, floats(x=(5, 2, 6)))
    assert flops(costs) == (input_part + state_part, input_part + state_part - 2 * 10 * gates * 4)
    assert [row.weight for row in costs.nodes] == ["w", "r"]


@pytest.mark.parametrize(
    ("equation", "shape", "multiply_adds"),
    [
        ("bti,oi->bto", (2, 7, 6), 2 * 7 * 6 * 4),
        ("...i,oi->...o", (2, 7, 6), 2 * 7 * 6 * 4),
        ("ij,kj", (3, 6), 3 * 6 * 4),
    ],
)
def test_einsum(equation: str, shape: tuple[int, ...], multiply_adds: int) -> None:
    made = model([node("Einsum", "x w", "y", equation=equation)], {"x": shape}, {"w": weight(4, 6, zeros=12)})
    assert flops(graph_costs(made, floats(x=shape))) == (2 * multiply_adds, multiply_adds)


def test_what_has_no_rule_is_free_and_listed() -> None:
    nodes = [node("Einsum", "x", "t", equation="ij->ji"), node("Relu", "t", "s"), node("Relu", "s", "y")]
    costs = graph_costs(model(nodes, {"x": (3, 4)}), floats(x=(3, 4)))
    assert flops(costs) == (0, 0)
    assert costs.uncounted == {"Einsum": 1, "Relu": 2}


def test_quantized_weights_have_a_zero_of_their_own() -> None:
    kernel = np.full((2, 1, 2, 2), 7, dtype=np.uint8)
    kernel[0, 0, 0, 0] = kernel[1, 0, 0, 0] = 9
    one, zero, seven = np.float32(1), np.uint8(0), np.array([7, 9], dtype=np.uint8)
    constants = {"w": kernel, "s": np.array(one), "z": np.array(zero), "wz": seven, "ws": np.ones(2, dtype=np.float32)}
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("QLinearConv", "q s z w ws wz s z", "c"),
        node("DequantizeLinear", "c s z", "y"),
    ]
    costs = graph_costs(model(nodes, {"x": (1, 1, 3, 3)}, constants), floats(x=(1, 1, 3, 3)))
    assert costs.nodes[0].nonzeros == 1 + 3
    assert flops(costs) == (2 * 8 * 4, 8 * 4)


def test_weights_that_are_made_of_constants() -> None:
    """Turned, cut, widened or dequantized at load: what counts is the weight that is used."""
    stored = weight(5, 3, zeros=3, dtype=np.int8)
    nodes = [node("DequantizeLinear", "w s", "d"), node("Transpose", "d", "t"), node("Gemm", "x t", "y", transB=1)]
    made = model(nodes, {"x": (2, 5)}, {"w": stored, "s": np.array(0.5, dtype=np.float32)})
    costs = graph_costs(made, floats(x=(2, 5)))
    assert flops(costs) == (2 * 2 * 15, 2 * 2 * 12)
    assert costs.nodes[0].weight == "t"


def test_constants_in_operators_and_sparse_initializers() -> None:
    held = numpy_helper.from_array(weight(5, 3, zeros=5), "w")
    constant = model([node("Constant", "", "w", value=held), node("MatMul", "x w", "y")], {"x": (1, 5)})
    sparse = model([node("MatMul", "x w", "y")], {"x": (1, 5)})
    values = numpy_helper.from_array(np.ones(10, dtype=np.float32), "w")
    places = numpy_helper.from_array(np.arange(5, 15), "w/indices")
    sparse.graph.sparse_initializer.add().CopyFrom(helper.make_sparse_tensor(values, places, [5, 3]))
    for made in (constant, sparse):
        costs = graph_costs(made, floats(x=(1, 5)))
        assert flops(costs) == (30, 20)
        assert (costs.parameters, costs.nonzeros, costs.bitmask_bytes) == (15, 10, bitmask_bytes(10, mask_bits=15))


def test_a_loop_costs_what_its_rounds_cost() -> None:
    body = helper.make_graph(
        [node("Identity", "go", "on"), node("MatMul", "state w", "next")],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, None),
        ],
    )
    constants = {"n": np.array(3), "w": weight(4, 4, zeros=8)}
    made = model([node("Loop", "n _ x", "y", body=body)], {"x": (1, 4)}, constants)
    costs = graph_costs(made, floats(x=(1, 4)))
    assert flops(costs) == (3 * 32, 3 * 16)
    assert len(costs.layers) == 1


@pytest.mark.parametrize(("value", "expected"), [(1.0, 2 * 8), (-1.0, 2 * 24)])
def test_of_branches_only_the_one_taken_counts(value: float, expected: float) -> None:
    small = graph([node("MatMul", "x v", "y")], {}, {"v": weight(4, 2)})
    large = graph([node("MatMul", "x w", "y")], {}, {"w": weight(4, 6)})
    nodes = [node("ReduceSum", "x", "s", keepdims=0), node("Greater", "s o", "c")]
    nodes.append(node("If", "c", "y", then_branch=small, else_branch=large))
    made = model(nodes, {"x": (1, 4)}, {"o": np.array(0, dtype=np.float32)})
    costs = graph_costs(made, {"x": np.full((1, 4), value, dtype=np.float32)})
    assert costs.dense_flops == expected
    assert costs.parameters == 8 + 24


def test_functions_of_the_model_are_looked_into() -> None:
    inner = helper.make_function(
        "mine", "Twice", ["a", "b"], ["c"], [node("MatMul", "a b", "c")], [helper.make_opsetid("", 17)]
    )
    made = model([node("MatMul", "x w", "y")], {"x": (1, 4)}, {"w": weight(4, 4, zeros=4)})
    made.graph.node[0].CopyFrom(helper.make_node("Twice", ["x", "w"], ["y"], domain="mine"))
    made.functions.append(inner)
    made.opset_import.append(helper.make_opsetid("mine", 1))
    assert flops(graph_costs(made, floats(x=(1, 4)))) == (32, 24)


def test_a_free_axis_has_the_length_of_the_input() -> None:
    made = model([node("MatMul", "x w", "y")], {"x": ("batch", "time", 5)}, {"w": weight(5, 3)})
    assert graph_costs(made, floats(x=(2, 9, 5))).dense_flops == 9 * graph_costs(made, floats(x=(2, 1, 5))).dense_flops


# Whole networks


@pytest.mark.parametrize("encoding", ["dense", "sparse", "compact"])
@pytest.mark.parametrize("name", NETS)
def test_agrees_with_the_torch_counter(name: str, encoding: str, tmp_path: object) -> None:
    network, example = sparse_net(name)
    path = f"{tmp_path}/net.onnx"
    export_onnx(network, example, path, encoding=encoding)
    examples = example if isinstance(example, tuple) else (example,)
    made = onnx.load(path)
    costs = graph_costs(
        made, {value.name: each.numpy() for value, each in zip(made.graph.input, examples, strict=True)}
    )
    masks = {key: parameter != 0 for key, parameter in sparse_parameters(network).items()}
    expected = count_flops(network, example, masks)
    assert flops(costs) == (expected.dense, pytest.approx(expected.sparse))


def test_lenet_of_the_paper(tmp_path: object) -> None:
    """784-300-100 dense: 532.4 KFLOPs; with 2,352, 3,270 and 1,000 connections: 13,244."""
    network = ModelSpec("lenet-300-100").build()
    kept = {"fc1.weight": 2352, "fc2.weight": 3270}
    with torch.no_grad():
        for name, alive in kept.items():
            network.get_parameter(name).view(-1)[alive:] = 0
    path = export_onnx(network, torch.rand(1, 1, 28, 28), f"{tmp_path}/net.onnx").path
    costs = graph_costs(onnx.load(path), floats(input=(1, 1, 28, 28)))
    assert flops(costs) == (532_400, 2 * (2352 + 3270 + 1000))
    assert costs.bitmask_bytes == 4 * (2352 + 3270 + 1000 + 410) + (784 * 300 + 300 * 100) / 8
