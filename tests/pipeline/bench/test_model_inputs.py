"""Inputs of models: shapes that are known, guessed, told, and wrong."""

import json
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_graphs import model, node, weight

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.random_inputs import model_inputs
from rigl_compress.exporters.sparsify import METADATA
from rigl_compress.pipeline.bench.model_inputs import InputSpec, draw_inputs, one_sample, parse_shape


def of(**inputs: Sequence[int | str]) -> onnx.ModelProto:
    return model([node("Relu", next(iter(inputs)), "y")], inputs)


def shapes(made: onnx.ModelProto, batch: int | None = None, **wished: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in draw_inputs(made, batch, InputSpec(wished)).items()}


def test_known_shapes() -> None:
    assert shapes(of(x=(1, 3, 8, 8), z=(5,))) == {"x": (1, 3, 8, 8), "z": (5,)}
    assert shapes(of(x=())) == {"x": ()}


@pytest.mark.parametrize(("batch", "length"), [(None, 1), (1, 1), (16, 16)])
def test_a_free_first_axis_is_the_batch(batch: int | None, length: int) -> None:
    assert shapes(of(x=("batch", 3), z=("batch", 4)), batch) == {"x": (length, 3), "z": (length, 4)}


def test_axes_of_the_same_name_have_the_same_length() -> None:
    made = of(words=("batch", "time"), mask=("batch", "time"), state=(2, "batch", 128))
    assert shapes(made, words=(1, 9)) == {"words": (1, 9), "mask": (1, 9), "state": (2, 1, 128)}
    assert shapes(made, 4, words=(1, 9)) == {"words": (4, 9), "mask": (4, 9), "state": (2, 4, 128)}


def test_the_users_first_axis_counts_unless_a_batch_is_asked_for() -> None:
    made = of(x=("batch", "time"))
    assert shapes(made, x=(7, 9)) == {"x": (7, 9)}
    assert shapes(made, 2, x=(7, 9)) == {"x": (2, 9)}


def test_recorded_shapes_fill_in() -> None:
    made = of(x=("batch", "time"))
    helper.set_model_props(made, {METADATA: json.dumps({"inputs": {"x": [3, 32]}})})
    assert shapes(made) == {"x": (1, 32)}
    assert shapes(made, 5) == {"x": (5, 32)}
    assert shapes(made, x=(1, 8)) == {"x": (1, 8)}


def test_whole_numbers_are_good_indices() -> None:
    made = of(x=(50,))
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    drawn = draw_inputs(made, None, InputSpec())["x"]
    assert drawn.dtype == np.int64
    assert set(drawn.tolist()) == {0, 1}


def test_initializers_are_no_inputs() -> None:
    made = model([node("MatMul", "x w", "y")], {"x": (1, 4), "w": (4, 2)}, {"w": weight(4, 2)})
    assert [each.name for each in model_inputs(made)] == ["x"]


def test_given_arrays() -> None:
    made = of(x=("batch", 3))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    drawn = draw_inputs(made, None, InputSpec(arrays={"x": array}))
    assert np.array_equal(drawn["x"], array)
    assert drawn["x"].shape == (2, 3)


def test_one_sample_of_every_axis_of_the_batch() -> None:
    made = of(x=("batch", 3), state=(2, "batch", 4), fixed=(6, 3))
    inputs = draw_inputs(made, None, InputSpec({"x": (5, 3)}))
    assert inputs["state"].shape == (2, 5, 4)
    cut = one_sample(made, inputs)
    assert {name: array.shape for name, array in cut.items()} == {"x": (1, 3), "state": (2, 1, 4), "fixed": (6, 3)}


@pytest.mark.parametrize(
    ("made", "batch", "wished", "message"),
    [
        (of(x=("batch", "time", 4)), None, {}, r"'x' has free axes, \[batch, time, 4\].*--shape x=1,N,4"),
        (of(x=(2, 3)), 4, {}, "'x' has the fixed shape .*2, 3.*: a batch of 4 does not fit"),
        (of(x=(2, 3)), None, {"x": (2, 4)}, r"\[2, 3\] in the model, and \[2, 4\] does not fit"),
        (of(x=(2, 3)), None, {"x": (2, 3, 1)}, "does not fit"),
        (of(image=(2, 3)), None, {"imaeg": (2, 3)}, "did you mean 'image'"),
    ],
)
def test_shapes_that_do_not_fit(
    made: onnx.ModelProto, batch: int | None, wished: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        draw_inputs(made, batch, InputSpec(wished))


@pytest.mark.parametrize(
    ("array", "batch", "message"),
    [
        (np.zeros((2, 3)), None, "is float64 in the file, the model takes float32"),
        (np.zeros((2, 4), dtype=np.float32), None, "does not fit"),
        (np.zeros((2, 3), dtype=np.float32), 4, "has a batch of 2 in the file: leave out --batch"),
    ],
)
def test_arrays_that_do_not_fit(array: np.ndarray, batch: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_inputs(of(x=("batch", 3)), batch, InputSpec(arrays={"x": array}))


def test_an_array_that_is_missing() -> None:
    with pytest.raises(InputError, match="has no 'z'"):
        draw_inputs(of(x=(1,), z=(1,)), None, InputSpec(arrays={"x": np.zeros(1, dtype=np.float32)}))


def test_inputs_that_are_no_numbers() -> None:
    made = of(x=(1,))
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.STRING
    with pytest.raises(InputError, match="is of type text"):
        model_inputs(made)
    made.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(InputError, match="is of type sequence_type"):
        model_inputs(made)


def test_what_people_write() -> None:
    assert parse_shape("serving_default:0=1,3") == ("serving_default:0", (1, 3))
    assert parse_shape("x=1x3x4") == ("x", (1, 3, 4))
    assert parse_shape("sr=") == ("sr", ())
    for wrong in ("x", "=1,2", "x=1,a", "x=0,2", "x=-1"):
        with pytest.raises(InputError, match="not of the form"):
            parse_shape(wrong)
