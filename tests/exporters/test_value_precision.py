"""Fewer bits: what is lost, what is not, and that the runtime computes what the decoder says."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from sparse_nets import sparse_weight

from rigl_compress.exporters.encodings import ENCODINGS, joined
from rigl_compress.exporters.value_precision import VALUES

Array = NDArray[Any]
weights = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=4, max_side=6),
    elements=st.one_of(st.just(0.0), st.floats(-1000, 1000, width=32)),
)


def rebuilt_by_the_runtime(array: Array, values: str, encoding: str) -> Array:
    narrow = VALUES[values].narrow("w", array)
    assert narrow is not None
    everything = joined(ENCODINGS[encoding].encode(f"w/{narrow.part}", narrow.array), narrow.around)
    graph = helper.make_graph(
        [*everything.nodes, helper.make_node("Identity", ["w"], ["y"])],
        "tensor",
        [],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape))],
        list(everything.initializers),
        value_info=list(everything.shapes),
        sparse_initializer=list(everything.sparse),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Array = session.run(None, {})[0]
    return found


def rebuilt_by_us(array: Array, values: str) -> Array:
    narrow = VALUES[values].narrow("w", array)
    assert narrow is not None
    parts = {tensor.name.removeprefix("w/"): numpy_helper.to_array(tensor) for tensor in narrow.around.initializers}
    return VALUES[values].widen(narrow.array, parts)


@pytest.mark.parametrize("values", ["fp16", "int8"])
@pytest.mark.parametrize("encoding", list(ENCODINGS))
def test_the_runtime_and_the_decoder_agree_to_the_bit(values: str, encoding: str) -> None:
    array = sparse_weight(shape=(8, 4, 3, 3))
    assert rebuilt_by_the_runtime(array, values, encoding).tobytes() == rebuilt_by_us(array, values).tobytes()


@given(weights)
def test_half_precision_is_within_its_rounding(array: Array) -> None:
    found = rebuilt_by_us(array, "fp16")
    assert np.all(np.abs(found - array) <= np.maximum(np.abs(array) * 2**-11, 2**-25))
    assert np.all(found[array == 0] == 0)


@given(weights)
def test_eight_bits_are_within_half_a_step_of_the_channel(array: Array) -> None:
    if VALUES["int8"].narrow("w", array) is None:
        return
    found = rebuilt_by_us(array, "int8")
    step = np.abs(array).max(axis=tuple(range(1, array.ndim)), keepdims=True) / 127
    assert np.all(np.abs(found - array) <= step * 0.5001)
    assert np.all(found[array == 0] == 0)


def test_each_channel_has_its_own_scale() -> None:
    array = np.array([[1.0, 0.5], [1000.0, 250.0]], dtype=np.float32)
    assert np.allclose(rebuilt_by_us(array, "int8"), array, rtol=0.01)


@pytest.mark.parametrize(
    ("values", "array"),
    [
        ("fp32", [[1.0, 2.0]]),
        ("fp16", [[1e6, 1.0]]),  # beyond the largest half
        ("int8", [[np.inf, 1.0]]),
        ("int8", [[np.nan, 1.0]]),
        ("int8", [1.0, 2.0]),  # a bias has no channels
        ("int8", [[1e-45, 0.0]]),  # the step would be zero
    ],
)
def test_what_cannot_be_narrower_keeps_its_bits(values: str, array: Any) -> None:
    assert VALUES[values].narrow("w", np.array(array, dtype=np.float32)) is None


def test_a_channel_of_zeros_stays_zero() -> None:
    assert np.array_equal(rebuilt_by_us(np.zeros((2, 3), dtype=np.float32), "int8"), np.zeros((2, 3)))
