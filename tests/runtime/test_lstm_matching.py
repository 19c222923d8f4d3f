"""LSTM and plain RNN layers on sparse kernels give what ONNX Runtime's own give, over all options."""

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

from rigl_compress.core.errors import InputError
from rigl_compress.runtime import session as module
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import kernel_sets
from rigl_compress.runtime.lstm_kernel import Lstm
from rigl_compress.runtime.rewrite import rewrite

pytestmark = [
    pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason()),
    pytest.mark.usefixtures("every_layer_sparse"),
]
Array = NDArray[Any]
SETS = kernel_sets() if not unavailable_reason() else []
SIZE, INPUTS = 16, 10
GATES = {"LSTM": 4, "RNN": 1}
DIRECTIONS = ["forward", "reverse", "bidirectional"]


def recurrent(kind: str, given: str = "b start", outputs: str = "y z", **options: Any) -> onnx.ModelProto:
    """A layer; `given` names its optional inputs (b, lengths, start, cell, peep), `outputs` those of y, z and c."""
    ways, gates = 2 if options.get("direction") == "bidirectional" else 1, GATES[kind]
    rng = np.random.default_rng(gates)
    arrays = {
        "w": np.stack([sparse_weight(0.5, (gates * SIZE, INPUTS), way) for way in range(ways)]),
        "r": np.stack([sparse_weight(0.8, (gates * SIZE, SIZE), 5 + way) for way in range(ways)]),
        "b": rng.standard_normal((ways, 2 * gates * SIZE)).astype(np.float32),
        "peep": rng.standard_normal((ways, 3 * SIZE)).astype(np.float32),
    }
    wanted = [name if name in given.split() else "" for name in ("b", "lengths", "start", "cell", "peep")]
    names = [name if name in outputs.split() else "" for name in ("y", "z", "c")]
    kept = 3 if kind == "RNN" else 5
    inputs = ["x", "w", "r", *wanted[:kept]]
    node = helper.make_node(kind, inputs, names[: 2 if kind == "RNN" else 3], hidden_size=SIZE, **options)
    state = [ways, "n", SIZE]
    shapes = {"x": ["t", "n", INPUTS], "start": state, "cell": state}
    values = [value(name, shapes[name]) for name in ("x", "start", "cell") if name in inputs]
    values += [value("lengths", ["n"], TensorProto.INT32)] if "lengths" in inputs else []
    found = [value("y", ["t", ways, "n", SIZE]), value("z", state), value("c", state)]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in inputs]
    graph = helper.make_graph([node], "g", values, [each for each in found if each.name in node.output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(["LSTM", "LSTM", "RNN"]),
    direction=st.sampled_from(DIRECTIONS),
    given_more=st.sets(st.sampled_from(["b", "lengths", "start", "cell"])),
    outputs=st.sampled_from(["y z c", "y", "z", "y z"]),
    steps=st.integers(1, 7),
    batch=st.sampled_from([1, 2, 3, 8, 17]),
    seed=st.integers(0, 1000),
    threads=st.integers(1, 2),
)
def test_every_option(
    kind: str, direction: str, given_more: set[str], outputs: str, steps: int, batch: int, seed: int, threads: int
) -> None:
    model = recurrent(kind, " ".join(given_more), outputs, direction=direction)
    assert_rewritten_same(model, f"Sparse{kind}", steps=steps, batch=batch, seed=seed, threads=threads)


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("batch", [1, 9])
def test_sessions_take_them(kind: str, direction: str, batch: int) -> None:
    assert_same(recurrent(kind, direction=direction), sparse=1, batch=batch)


@pytest.mark.parametrize("activation", ["Tanh", "Sigmoid"])
def test_other_activations_of_an_rnn(activation: str) -> None:
    assert_same(recurrent("RNN", direction="bidirectional", activations=[activation] * 2), sparse=1)


@pytest.mark.parametrize(
    ("kind", "given", "options"),
    [
        ("LSTM", "b", {"clip": 0.5}),
        ("LSTM", "b", {"input_forget": 1}),
        ("LSTM", "b peep", {}),
        ("LSTM", "b", {"activations": ["Sigmoid", "Tanh", "Relu"]}),
        ("RNN", "b", {"activations": ["Relu"]}),
        ("RNN", "b", {"activations": ["Tanh", "Sigmoid"], "direction": "bidirectional"}),
        ("RNN", "b", {"clip": 0.5}),
    ],
)
def test_others_are_left_alone(kind: str, given: str, options: dict[str, Any]) -> None:
    assert_same(recurrent(kind, given, **options), sparse=0)


def test_only_the_last_cell_is_used() -> None:
    model = recurrent("LSTM", outputs="c")
    assert_same(model, sparse=1)
    assert [each.op_type for each in rewrite(model, lambda *_: True).model.graph.node] == ["SparseMatMul", "SparseLSTM"]


def test_lengths_that_do_not_fit_are_refused_in_a_sentence() -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    module.register(options)
    model = recurrent("LSTM", "lengths")
    rewritten = rewrite(model, lambda *_: True).model.SerializeToString()
    session = ort.InferenceSession(rewritten, options, providers=["CPUExecutionProvider"])
    inputs = {**inputs_of(model, 5, 2), "lengths": np.array([6, 2], np.int32)}
    with pytest.raises(Exception, match=r"SparseLSTM: sequence length outside \[0, steps\]"):
        session.run(None, inputs)


def sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-values)))


def reference(matrix: Array, x: Array, start: Array, cell: Array, gates: int) -> tuple[Array, Array, Array]:
    """One direction forward, by the equations of the ONNX standard."""
    state, states = start.astype(np.float64), []
    cell = cell.astype(np.float64)
    for step in x.astype(np.float64):
        summed = step + state @ matrix.T
        if gates == 1:
            state = np.tanh(summed)
        else:
            enter, leave, keep, fresh = np.split(summed, 4, axis=1)
            cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(fresh)
            state = sigmoid(leave) * np.tanh(cell)
        states.append(state)
    return np.stack(states), state, cell


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("gates", [1, 4])
@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 1000),
    size=st.integers(1, 40),
    steps=st.integers(1, 5),
    batch=st.sampled_from([1, 2, 9]),
    threads=st.integers(1, 3),
)
def test_kernels(kernels: str, gates: int, seed: int, size: int, steps: int, batch: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((2, gates * size, size)).astype(np.float32)
    matrix[rng.random(matrix.shape) < 0.8] = 0
    x = rng.standard_normal((steps, batch, 2, gates * size)).astype(np.float32)
    start, cell = rng.standard_normal((2, 2, batch, size)).astype(np.float32)
    operator = Lstm(matrix.reshape(-1, size), kernels, backward=(False, True), activation="tanh" if gates == 1 else "")
    found = operator(x.reshape(steps, batch, -1), start, cell, threads=threads)
    for way in range(2):
        given_x = x[::-1, :, way] if way else x[:, :, way]
        states, last, cells = reference(matrix[way], given_x, start[way], cell[way], gates)
        np.testing.assert_allclose(found[0][:, way], states[::-1] if way else states, atol=1e-5)
        np.testing.assert_allclose(found[1][way], last, atol=1e-5)
        if gates == 4:
            np.testing.assert_allclose(found[2][way], cells, atol=1e-5)


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="LSTM: expected packed weights with a row per gate, column and direction"):
        Lstm(np.ones((9, 3), np.float32))
    with pytest.raises(InputError, match="LSTM: expected 1 or 2 directions"):
        Lstm(np.ones((12, 3), np.float32), backward=())
