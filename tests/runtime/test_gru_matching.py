"""GRU layers on sparse kernels give what ONNX Runtime's own GRU gives, over all options of the operator."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import value
from recurrent_sessions import assert_rewritten_same, assert_same, inputs_of
from sparse_nets import sparse_weight

from rigl_compress.runtime import session as module
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import DOMAIN, rewrite
from rigl_compress.runtime.session import InferenceSession

pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
]
Array = NDArray[Any]
SIZE, INPUTS = 16, 10
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def gru_net(given: str = "b start", outputs: str = "y z", seed: int = 0, **options: Any) -> onnx.ModelProto:
    """A GRU; `given` names its optional inputs (b, lengths, start), `outputs` those of y and z that are wanted."""
    rng = np.random.default_rng(seed)
    ways = 2 if options.get("direction") == "bidirectional" else 1
    arrays = {
        "w": np.stack([sparse_weight(0.5, (3 * SIZE, INPUTS), seed + way) for way in range(ways)]),
        "r": np.stack([sparse_weight(0.8, (3 * SIZE, SIZE), seed + 5 + way) for way in range(ways)]),
        "b": rng.standard_normal((ways, 6 * SIZE)).astype(np.float32),
    }
    wanted = [name if name in given.split() else "" for name in ("b", "lengths", "start")]
    names = [name if name in outputs.split() else "" for name in ("y", "z")]
    node = helper.make_node("GRU", ["x", "w", "r", *wanted], names, hidden_size=SIZE, **options)
    inputs = [value("x", ["t", "n", INPUTS])]
    inputs += [value("lengths", ["n"], TensorProto.INT32)] if "lengths" in wanted else []
    inputs += [value("start", [ways, "n", SIZE])] if "start" in wanted else []
    found = [value("y", ["t", ways, "n", SIZE]), value("z", [ways, "n", SIZE])]
    graph = helper.make_graph(
        [node],
        "g",
        inputs,
        [each for each in found if each.name in names],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in node.input],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(deadline=None, max_examples=150)
@given(
    direction=st.sampled_from(DIRECTIONS),
    reset_after=st.integers(0, 1),
    given_more=st.sets(st.sampled_from(["b", "lengths", "start"])),
    outputs=st.sampled_from(["y z", "y", "z"]),
    steps=st.integers(1, 7),
    batch=st.sampled_from([1, 2, 3, 8, 17]),
    seed=st.integers(0, 1000),
    threads=st.integers(1, 2),
)
def test_every_option(
    direction: str,
    reset_after: int,
    given_more: set[str],
    outputs: str,
    steps: int,
    batch: int,
    seed: int,
    threads: int,
) -> None:
    model = gru_net(" ".join(given_more), outputs, seed, direction=direction, linear_before_reset=reset_after)
    assert_rewritten_same(model, "SparseGRU", steps=steps, batch=batch, seed=seed, threads=threads)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("reset_after", [0, 1])
@pytest.mark.parametrize("batch", [1, 9])
def test_sessions_take_them(direction: str, reset_after: int, batch: int) -> None:
    assert_same(gru_net(direction=direction, linear_before_reset=reset_after), sparse=1, batch=batch)


def test_inputs_that_stay_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "runs_faster", lambda layer, *_: layer.operator == "SparseGRU")
    for direction in DIRECTIONS:
        model = gru_net(direction=direction)
        assert_same(model, sparse=1)
        operators = [node.op_type for node in rewrite(model, module.runs_faster).model.graph.node]
        assert operators == ["MatMul", "Add", "SparseGRU"]


def test_only_the_last_state_is_used() -> None:
    model = gru_net(outputs="z", linear_before_reset=1)
    assert_same(model, sparse=1)
    assert [each.op_type for each in rewrite(model, lambda *_: True).model.graph.node if each.domain == DOMAIN] == [
        "SparseMatMul",
        "SparseGRU",
    ]


@pytest.mark.parametrize("lengths", [[-1, 2], [6, 2], [2]])
def test_lengths_that_do_not_fit_are_refused_in_a_sentence(lengths: list[int]) -> None:
    model = gru_net("lengths")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    module.register(options)
    rewritten = rewrite(model, lambda *_: True).model.SerializeToString()
    session = ort.InferenceSession(rewritten, options, providers=["CPUExecutionProvider"])
    inputs = {**inputs_of(model, 5, 2), "lengths": np.array(lengths, np.int32)}
    expected = (
        "expected one sequence length per sample" if len(lengths) == 1 else r"sequence length outside \[0, steps\]"
    )
    with pytest.raises(Exception, match=f"SparseGRU: {expected}"):
        session.run(None, inputs)


def wide(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights that are not constant."""
    model.graph.input.append(value("r", [1, 3 * SIZE, SIZE]))
    return model


@pytest.mark.parametrize(
    "options",
    [
        {"clip": 0.1},
        {"activations": ["Sigmoid", "Relu"]},
        {"activations": ["Sigmoid", "Tanh", "Tanh", "Tanh"], "direction": "bidirectional"},
    ],
    ids=["clip", "activations", "activations of one direction"],
)
def test_others_are_left_alone(options: dict[str, Any]) -> None:
    assert_same(gru_net(linear_before_reset=1, **options), sparse=0)


def test_weights_that_callers_may_override_are_left_alone() -> None:
    ours = InferenceSession(wide(gru_net(given="b")).SerializeToString())
    assert ours.sparse_layers == ()
    x = np.ones((3, 2, INPUTS), np.float32)
    states = ours.run(["y"], {"x": x, "r": np.zeros((1, 3 * SIZE, SIZE), np.float32)})
    assert np.any(states[0] != ours.run(["y"], {"x": x})[0])
