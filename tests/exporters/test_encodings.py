"""Every encoding, on any tensor: bit by bit through our decoder, ONNX Runtime and the reference evaluator."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from rigl_compress.exporters.encodings import ENCODINGS, Encoded, gaps, nonzero_bits

Array = NDArray[Any]
OPSET = 17

values = st.one_of(
    st.just(np.float32(0)),
    st.sampled_from([np.float32(x) for x in (-0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-40, 1.5)]),
    st.floats(width=32),
)
shapes = hnp.array_shapes(min_dims=1, max_dims=5, max_side=9)
# Numbers that people write, and any bits at all: among them every NaN there is, and many zeros.
any_bits = hnp.arrays(np.uint32, shapes, elements=st.one_of(st.just(0), st.integers(0, 2**32 - 1)))
arrays = st.one_of(hnp.arrays(np.float32, shapes, elements=values), any_bits.map(lambda array: array.view(np.float32)))
SIGNALLING, PAYLOAD = 0x7F800001, 0xFFC12345  # NaNs whose bits a computation would change
EDGES = {
    "all zero": np.zeros((3, 4), dtype=np.float32),
    "no zero": np.arange(1, 13, dtype=np.float32).reshape(3, 4),
    "one element": np.ones((1,), dtype=np.float32),
    "one zero": np.zeros((1,), dtype=np.float32),
    "five axes": np.pad(np.ones((1, 2, 1, 2, 1), dtype=np.float32), [(0, 1)] * 5),
    "NaNs": np.array([0, SIGNALLING, 0, PAYLOAD, 0x7FC00000, 0xFF800001], dtype=np.uint32).view(np.float32),
    "infinite": np.array([[0, np.inf], [-np.inf, 0]], dtype=np.float32),
    "negative zeros": np.array([[0.0, -0.0], [-0.0, 0.0]], dtype=np.float32),
    "subnormal": np.array([1, 0, 0x80000001, 0x007FFFFF], dtype=np.uint32).view(np.float32),
    "far apart": np.eye(1, 3000, 2999, dtype=np.float32),
    "the last place": np.eye(1, 256, 255, dtype=np.float32),
}


def same_bits(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()


def model_of(encoded: Encoded, array: Array) -> onnx.ModelProto:
    """A model that gives the tensor as its output, multiplied by nothing: it takes an input that it adds no use of."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    graph = helper.make_graph(
        [*encoded.nodes, helper.make_node("Identity", ["w"], ["y"])],
        "tensor",
        [],
        [helper.make_tensor_value_info("y", kind, list(array.shape))],
        list(encoded.initializers),
        value_info=list(encoded.shapes),
        sparse_initializer=list(encoded.sparse),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def parts_of(encoded: Encoded) -> dict[str, Array]:
    parts = {tensor.name.removeprefix("w").removeprefix("/"): tensor for tensor in encoded.initializers}
    for sparse in encoded.sparse:
        parts |= {"": sparse.values, "indices": sparse.indices}
    return {name: numpy_helper.to_array(tensor) for name, tensor in parts.items()}


def run(model: onnx.ModelProto) -> Array:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    result: Array = session.run(None, {})[0]
    return result


# By what each makes of an array: without ONNX's sparse initializers, and by operators that rebuild it.
ENCODED = {name: each.encode("w", np.eye(50, dtype=np.float32)) for name, each in ENCODINGS.items()}
WITHOUT_SPARSE_INITIALIZERS = [name for name, encoded in ENCODED.items() if not encoded.sparse]
BY_OPERATORS = [name for name, encoded in ENCODED.items() if encoded.nodes]


@pytest.mark.parametrize("name", list(ENCODINGS))
@given(array=arrays)
def test_our_decoder_gives_every_bit_back(name: str, array: Array) -> None:
    encoded = ENCODINGS[name].encode("w", array)
    assert same_bits(ENCODINGS[name].decode(parts_of(encoded), array.shape), array)


@pytest.mark.parametrize("name", list(ENCODINGS))
@given(array=arrays)
def test_onnx_runtime_gives_every_bit_back(name: str, array: Array) -> None:
    encoded = ENCODINGS[name].encode("w", array)
    model = model_of(encoded, array)
    onnx.checker.check_model(model, full_check=not encoded.sparse)  # the full check refuses any sparse initializer
    assert same_bits(run(model), array)


@pytest.mark.parametrize("name", WITHOUT_SPARSE_INITIALIZERS)
@given(array=arrays)
def test_the_reference_evaluator_agrees(name: str, array: Array) -> None:
    model = model_of(ENCODINGS[name].encode("w", array), array)
    assert same_bits(ReferenceEvaluator(model).run(None, {})[0], array)


@pytest.mark.parametrize("name", list(ENCODINGS))
@pytest.mark.parametrize("edge", EDGES)
def test_every_bit_at_the_edges(name: str, edge: str) -> None:
    array = EDGES[edge]
    encoded = ENCODINGS[name].encode("w", array)
    model = model_of(encoded, array)
    assert same_bits(ENCODINGS[name].decode(parts_of(encoded), array.shape), array)
    assert same_bits(run(model), array)
    if not encoded.sparse:  # which the reference evaluator cannot read
        assert same_bits(ReferenceEvaluator(model).run(None, {})[0], array)


@pytest.mark.parametrize("name", list(ENCODINGS))
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int8, np.uint8])
def test_other_kinds_of_numbers(name: str, kind: Any) -> None:
    array = np.array([[0, 1.5, 0], [-0.0, 0, 2]]).astype(kind)
    encoded = ENCODINGS[name].encode("w", array)
    assert same_bits(ENCODINGS[name].decode(parts_of(encoded), array.shape), array)
    assert same_bits(run(model_of(encoded, array)), array)


def sparse_array(density: float) -> Array:
    rng = np.random.default_rng(0)
    array = rng.standard_normal((300, 784)).astype(np.float32)
    array[rng.random(array.shape) >= density] = 0
    return array


@pytest.mark.parametrize("name", BY_OPERATORS)
def test_the_runtime_folds_all_of_it(name: str, tmp_path: Any) -> None:
    array = sparse_array(0.1)
    encoded = ENCODINGS[name].encode("w", array)
    graph = helper.make_graph(
        [*encoded.nodes, helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 784])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 300])],
        list(encoded.initializers),
        value_info=list(encoded.shapes),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node] == ["Gemm"]


@pytest.mark.parametrize(
    ("name", "per_value", "per_place"), [("dense", 0, 4), ("sparse", 12, 0), ("bitmask", 4, 1 / 8), ("gap8", 5, 0)]
)
def test_bytes_are_what_the_formula_says(name: str, per_value: float, per_place: float) -> None:
    array = sparse_array(0.1)
    count = int(nonzero_bits(array).sum())
    found = ENCODINGS[name].encode("w", array).nbytes
    assert 0 <= found - (per_value * count + per_place * array.size) < 1000  # names, operators and shapes


def test_gap8_and_bitmask_cross_at_an_eighth() -> None:
    def smallest(density: float) -> str:
        array = sparse_array(density)
        return min(ENCODINGS, key=lambda name: ENCODINGS[name].encode("w", array).nbytes)

    assert [smallest(density) for density in (0.10, 0.15, 1.0)] == ["gap8", "bitmask", "dense"]


@given(st.lists(st.integers(0, 5000), unique=True, max_size=40))
def test_gaps_lead_from_place_to_place(places: list[int]) -> None:
    wanted = np.array(sorted(places), dtype=np.int64)
    steps, visited = gaps(wanted)
    assert np.array_equal(np.cumsum(steps.astype(np.int64)), visited)
    assert set(wanted) <= set(visited.tolist())
    assert len(visited) == len(set(visited.tolist()))
