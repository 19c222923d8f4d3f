"""Activations that follow a sparse layer become part of it, in every form in which exporters write them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession

pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
]
CONSTANTS = {
    **{"root": 2**0.5, "inverse": 0.5**0.5, "one": 1.0, "half": 0.5, "three": 3.0, "cube": 0.044715},
    **{"scale": (2 / np.pi) ** 0.5, "two": 2.0},
}
Steps = list[tuple[str, str, str]]  # operator, inputs, output; the product is "p", the end "y"


def net(steps: Steps, conv: bool = False, opset: int = 20, **settings: Any) -> onnx.ModelProto:
    """A sparse layer and what follows it; settings are those of the operator of the first step."""
    weight = sparse_weight(0.8, (12, 10))
    tensors = {"w": weight[:, :, None, None] if conv else weight.T, **{k: np.float32(v) for k, v in CONSTANTS.items()}}
    nodes = [helper.make_node("Conv" if conv else "MatMul", ["x", "w"], ["p"])]
    for place, (kind, inputs, output) in enumerate(steps):
        nodes.append(helper.make_node(kind, inputs.split(), [output], **(settings if place == 0 else {})))
    shape = ["n", 10, 5, 5] if conv else ["n", 10]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ascontiguousarray(a, np.float32), name) for name, a in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in rewrite(model, lambda *_: True).model.graph.node]


def assert_same(model: onnx.ModelProto, batch: int = 3) -> None:
    ours = InferenceSession(model.SerializeToString())
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert len(ours.sparse_layers) == 1
    axes = [axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim][1:]
    x = 2 * np.random.default_rng(0).standard_normal((batch, *axes)).astype(np.float32)
    assert largest_difference(ours.run(None, {"x": x}), theirs.run(None, {"x": x})) < 1e-6


ERF: Steps = [("Div", "p root", "a"), ("Erf", "a", "b"), ("Add", "b one", "c")]
FORMS: dict[str, tuple[Steps, dict[str, Any]]] = {
    "sigmoid": ([("Sigmoid", "p", "y")], {}),
    "tanh": ([("Tanh", "p", "y")], {}),
    "hard swish": ([("HardSwish", "p", "y")], {}),
    "gelu": ([("Gelu", "p", "y")], {}),
    "gelu with tanh": ([("Gelu", "p", "y")], {"approximate": "tanh"}),
    "silu": ([("Sigmoid", "p", "a"), ("Mul", "p a", "y")], {}),
    "silu, turned round": ([("Sigmoid", "p", "a"), ("Mul", "a p", "y")], {}),
    "hard swish in two": ([("HardSigmoid", "p", "a"), ("Mul", "p a", "y")], {"alpha": 1 / 6}),
    "gelu, product halved": ([*ERF, ("Mul", "p c", "d"), ("Mul", "d half", "y")], {}),
    "gelu, half of x": ([*ERF, ("Mul", "half p", "d"), ("Mul", "d c", "y")], {}),
    "gelu, half of the rest": ([*ERF, ("Mul", "c half", "d"), ("Mul", "p d", "y")], {}),
    "gelu, times the inverse": ([("Mul", "p inverse", "a"), *ERF[1:], ("Mul", "p c", "d"), ("Mul", "d half", "y")], {}),
    "gelu with tanh, in parts": (
        [
            *[("Pow", "p three", "a"), ("Mul", "a cube", "b"), ("Add", "p b", "c"), ("Mul", "c scale", "d")],
            *[("Tanh", "d", "e"), ("Add", "e one", "f"), ("Mul", "p half", "g"), ("Mul", "g f", "y")],
        ],
        {},
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("conv", [False, True], ids=["product", "convolution"])
def test_fused(form: str, conv: bool) -> None:
    steps, settings = FORMS[form]
    model = net(steps, conv, **settings)
    assert operators(model) == ["SparseConv" if conv else "SparseMatMul"]
    assert_same(model)
    assert_same(model, batch=1)


def also_output(model: onnx.ModelProto) -> onnx.ModelProto:
    """The value before the activation is an output too."""
    model.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, None))
    return model


def also_used(model: onnx.ModelProto) -> onnx.ModelProto:
    """The gate is used elsewhere too."""
    model.graph.node.append(helper.make_node("Neg", ["a"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    return model


LEFT: dict[str, tuple[Steps, dict[str, Any], Callable[[onnx.ModelProto], onnx.ModelProto]]] = {
    "another alpha": ([("HardSigmoid", "p", "a"), ("Mul", "p a", "y")], {"alpha": 0.2}, lambda model: model),
    "another root": (
        [("Div", "p two", "a"), *ERF[1:], ("Mul", "p c", "d"), ("Mul", "d half", "y")],
        {},
        lambda model: model,
    ),
    "root over x": (
        [("Div", "root p", "a"), *ERF[1:], ("Mul", "p c", "d"), ("Mul", "d half", "y")],
        {},
        lambda model: model,
    ),
    "another half": ([*ERF, ("Mul", "p c", "d"), ("Mul", "d two", "y")], {}, lambda model: model),
    "a gate of itself": ([("Sin", "p", "a"), ("Mul", "a a", "y")], {}, lambda model: model),
    "an output before it": ([("Sigmoid", "p", "a"), ("Mul", "p a", "y")], {}, also_output),
    "a gate with another use": ([("Sigmoid", "p", "a"), ("Mul", "p a", "y")], {}, also_used),
}


@pytest.mark.parametrize("case", LEFT)
def test_anything_else_stays(case: str) -> None:
    steps, settings, change = LEFT[case]
    model = change(net(steps, **settings))
    assert operators(model)[: len(steps) + 1] == ["SparseMatMul", *(kind for kind, _, _ in steps)]
    assert_same(model)
