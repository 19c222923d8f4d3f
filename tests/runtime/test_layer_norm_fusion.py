"""Layer normalization next to sparse products runs on our kernel, together with the sum before it."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import sparse_weight

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import session as module
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession

pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
]
WIDTH = 24
TENSORS = {
    "w": sparse_weight(0.8, (WIDTH, WIDTH)),
    "scale": np.linspace(-1, 2, WIDTH),
    "bias": np.linspace(2, -1, WIDTH),
    "short": np.ones(1),
}


def net(lines: str, *, x: list[Any] | None = None, **settings: Any) -> onnx.ModelProto:
    """A network of lines such as "MatMul x w -> p"; settings are those of the normalization."""
    nodes = []
    for line in lines.split(";"):
        (kind, *inputs), outputs = (side.split() for side in line.split("->"))
        options = settings if kind == "LayerNormalization" else {}
        nodes.append(helper.make_node(kind, [each.replace("-", "") for each in inputs], outputs, **options))
    names = {name for node in nodes for name in node.input}
    made = {name for node in nodes for name in node.output}
    inputs = [name for name in ("x", "r") if name in names]
    shapes = {"x": x or ["n", 5, WIDTH], "r": ["m", 5, WIDTH]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z") if n in made],
        [numpy_helper.from_array(np.asarray(a, np.float32), name) for name, a in TENSORS.items() if name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in rewrite(model, lambda *_: True).model.graph.node]


def assert_same(model: onnx.ModelProto, batches: tuple[int, int] = (3, 3)) -> None:
    ours = InferenceSession(model.SerializeToString())
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    sizes = dict(zip("xr", batches, strict=True))
    inputs = {
        each.name: rng.standard_normal(
            [sizes[each.name], *(axis.dim_value for axis in each.type.tensor_type.shape.dim[1:])]
        ).astype(np.float32)
        for each in model.graph.input
    }
    assert len(ours.sparse_layers) >= 1
    assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < 2e-6


FUSED = {
    "before a product": ("LayerNormalization x scale bias -> p; MatMul p w -> y", 0),
    "after a product": ("MatMul x w -> p; LayerNormalization p scale -> y", 0),
    "after a sum": ("MatMul x w -> p; Add p x -> s; LayerNormalization s scale bias -> y", 0),
    "after a sum, turned round": ("MatMul x w -> p; Add x p -> s; LayerNormalization s scale bias -> y", 0),
    "the sum is used again": (
        "MatMul x w -> p; Add x p -> s; Neg s -> n; LayerNormalization s scale bias -> q; Add q n -> y",
        2,
    ),
    "the sum is an output": ("MatMul x w -> p; Add x p -> z; LayerNormalization z scale bias -> y", 0),
    "a sum with another batch": ("MatMul x w -> p; Add p r -> s; LayerNormalization s scale bias -> y", 0),
    "two in a row": (
        "MatMul x w -> p; Add p x -> s; LayerNormalization s scale bias -> q; MatMul q w -> t; Add t s -> u; "
        "LayerNormalization u scale bias -> y",
        0,
    ),
}


@pytest.mark.parametrize("case", FUSED)
def test_fused(case: str) -> None:
    lines, adds = FUSED[case]
    model = net(lines, epsilon=1e-3)
    found = operators(model)
    assert "LayerNormalization" not in found
    assert "AddLayerNorm" in found
    assert found.count("Add") + found.count("Neg") == adds
    assert_same(model)


@pytest.mark.parametrize("batches", [(1, 3), (3, 1), (1, 1), (2, 2)])
def test_either_side_of_the_sum_may_repeat(batches: tuple[int, int]) -> None:
    assert_same(net("MatMul x w -> p; Add p r -> s; LayerNormalization s scale bias -> y"), batches)


def test_sums_that_do_not_fit_are_refused_as_before() -> None:
    model = net("MatMul x w -> p; Add p r -> s; LayerNormalization s scale bias -> y")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    module.register(options)
    rewritten = rewrite(model, lambda *_: True).model.SerializeToString()
    session = ort.InferenceSession(rewritten, options, providers=["CPUExecutionProvider"])
    inputs = {name: np.ones((size, 5, WIDTH), np.float32) for name, size in (("x", 2), ("r", 3))}
    with pytest.raises(Exception, match="AddLayerNorm: the residual does not have the shape of the input"):
        session.run(None, inputs)


LEFT = {
    "over two axes": ("MatMul x w -> p; LayerNormalization p scale -> y", {"axis": 1}),
    "far from sparse layers": (
        "MatMul x w -> p; Sin p -> s; LayerNormalization s scale -> t; Sin t -> y",
        {},
    ),
    "with the mean as an output": ("MatMul x w -> p; LayerNormalization p scale bias -> y z", {}),
    "scaled by one number": ("MatMul x w -> p; LayerNormalization p short -> y", {}),
}


@pytest.mark.parametrize("case", LEFT)
def test_others_stay(case: str) -> None:
    lines, settings = LEFT[case]
    assert "LayerNormalization" in operators(net(lines, **settings))
