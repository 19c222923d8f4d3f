"""Encoding whole models, and the way back to the bit."""

import json
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from sparse_nets import NETS, onnx_layer, plain_model, sparse_weight

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.encodings import ENCODINGS
from rigl_compress.exporters.index_encoding import decode_indices, encode_indices
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import clear_negative_zeros, encoding_names, lift_constants, metadata_of, sparsify
from rigl_compress.exporters.tensor_table import rows_of
from rigl_compress.exporters.value_precision import VALUES

Array = NDArray[Any]


def tensors(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def bits(model: onnx.ModelProto) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in tensors(model).items()}


def labels(model: onnx.ModelProto) -> dict[str, str]:
    return {row.name: row.encoding for row in rows_of(model)}


def run(model: onnx.ModelProto, **inputs: Array) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: list[Array] = session.run(None, inputs)
    return outputs


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("encoding", encoding_names())
def test_float32_comes_back_bit_by_bit(net: str, encoding: str) -> None:
    plain = plain_model(net)
    encoded = sparsify(plain, encoding, "fp32")
    assert bits(restore(encoded)) == bits(plain)
    assert restore(encoded).graph.node == plain.graph.node
    assert (set(labels(encoded).values()) == {"dense"}) == (encoding == "dense")
    if encoding != "dense":
        assert encoded.ByteSize() < plain.ByteSize()


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("encoding", encoding_names())
@pytest.mark.parametrize("values", ["fp16", "int8"])
def test_fewer_bits_come_back_as_the_runtime_sees_them(net: str, encoding: str, values: str) -> None:
    encoded = sparsify(plain_model(net), encoding, values)
    assert any(label.endswith(f"+{values}") for label in labels(encoded).values())
    back = restore(encoded)
    shown = helper.make_graph([], "all", [], [])
    shown.CopyFrom(encoded.graph)
    narrowed = [name for name, label in labels(encoded).items() if "+" in label]
    shown.output.extend(helper.make_empty_tensor_value_info(name) for name in narrowed)
    for value in shown.output[1:]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    model = helper.make_model(shown, opset_imports=encoded.opset_import, ir_version=encoded.ir_version)
    kind = np.int64 if net == "recurrent" else np.float32
    shape = [axis.dim_value or 2 for axis in encoded.graph.input[0].type.tensor_type.shape.dim]
    found = dict(zip(narrowed, run(model, input=np.ones(shape, dtype=kind))[1:], strict=True))
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: tensors(back)[name].tobytes() for name in narrowed
    }


@pytest.mark.parametrize("encoding", ["dense", "bitmask", "gap8"])  # it cannot read sparse initializers
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("net", NETS)
def test_the_reference_evaluator_agrees(net: str, encoding: str, values: str) -> None:
    encoded = sparsify(plain_model(net), encoding, values)
    onnx.checker.check_model(encoded, full_check=True)
    rng = np.random.default_rng(0)
    shape = [axis.dim_value or 3 for axis in encoded.graph.input[0].type.tensor_type.shape.dim]
    x = rng.integers(0, 20, shape) if net == "recurrent" else rng.random(shape, dtype=np.float32)
    found, expected = ReferenceEvaluator(encoded).run(None, {"input": x})[0], run(encoded, input=x)[0]
    assert np.allclose(found, expected, atol=1e-5)


def test_the_reference_evaluator_knows_no_sparse_initializers() -> None:
    """Once it does, the test above takes them in."""
    model = sparsify(onnx_layer(sparse_weight()), "sparse", "fp32")
    with pytest.raises(Exception, match="SparseTensorProto"):
        ReferenceEvaluator(model).run(None, {"x": np.ones((2, 60), dtype=np.float32)})


@pytest.mark.parametrize(("sparsity", "expected"), [(0.5, "dense"), (0.6, "dense"), (0.72, "sparse"), (0.9, "sparse")])
def test_sparse_begins_at_two_thirds(sparsity: float, expected: str) -> None:
    model = sparsify(onnx_layer(sparse_weight(sparsity, (100, 100))), "sparse", "fp32")
    assert labels(model) == {"w": expected}


@pytest.mark.parametrize(("sparsity", "expected"), [(0.0, "dense"), (0.6, "bitmask"), (0.8, "bitmask"), (0.95, "gap8")])
def test_compact_is_the_smallest_of_all(sparsity: float, expected: str) -> None:
    plain = onnx_layer(sparse_weight(sparsity, (100, 100)))
    compact = sparsify(plain, "compact", "fp32")
    assert labels(compact) == {"w": expected}
    assert compact.ByteSize() == min(sparsify(plain, name, "fp32").ByteSize() for name in ENCODINGS)


@pytest.mark.parametrize("encoding", encoding_names())
def test_a_dense_model_never_grows(encoding: str) -> None:
    plain = onnx_layer(sparse_weight(0.0))
    assert labels(sparsify(plain, encoding, "fp32")) == {"w": "dense"}
    assert sparsify(plain, encoding, "fp32").ByteSize() - plain.ByteSize() < 50


@pytest.mark.parametrize("encoding", ["gap8", "bitmask", "compact"])
def test_nodes_stand_in_a_valid_order(encoding: str) -> None:
    model = sparsify(plain_model("convolutions"), encoding, "int8")
    onnx.checker.check_model(model)
    made = {tensor.name for tensor in model.graph.initializer} | {"input", ""}
    made |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    for node in model.graph.node:
        assert set(node.input) <= made
        made |= set(node.output)


def test_bytes_of_the_rows_are_those_of_the_file() -> None:
    model = sparsify(plain_model("convolutions"), "compact", "fp16")
    rows = rows_of(model)
    assert {row.name for row in rows} == set(tensors(plain_model("convolutions")))
    assert 0 < model.ByteSize() - sum(row.bytes for row in rows) < 1600  # the graph itself
    back = tensors(restore(model))
    assert all(row.nonzeros == np.count_nonzero(back[row.name]) for row in rows)


# Models from elsewhere


def test_a_sparse_file_from_elsewhere_is_read() -> None:
    weight = sparse_weight(0.8, (6, 8))
    places = np.argwhere(weight)
    values = numpy_helper.from_array(weight[weight != 0], "w")
    by_axis = helper.make_sparse_tensor(values, numpy_helper.from_array(places, "i"), [6, 8])
    linear = helper.make_sparse_tensor(values, numpy_helper.from_array(np.flatnonzero(weight), "i"), [6, 8])
    for sparse in (by_axis, linear):
        model = onnx_layer(weight, initializer=[], sparse_initializer=[sparse])
        assert labels(model) == {"w": "sparse"}
        assert np.array_equal(tensors(restore(model))["w"], weight)


def test_weights_in_constants_are_found() -> None:
    weight = sparse_weight()
    model = onnx_layer(weight, initializer=[])
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight, "anything"))
    model.graph.node.insert(0, constant)
    lift_constants(model)
    assert [node.op_type for node in model.graph.node] == ["Gemm"]
    assert np.array_equal(tensors(model)["w"], weight)
    assert labels(sparsify(model, "gap8", "fp32")) == {"w": "gap8"}


@pytest.mark.parametrize("encoding", encoding_names())
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(100, 100), (7, 3, 5, 5)])
def test_a_model_that_was_multiplied_by_masks_comes_back_bit_by_bit(encoding: str, kind: Any, shape: Any) -> None:
    """Half of its zeros are -0.0: they cost a bit a place, not a number each."""
    weight = (sparse_weight(0, shape) * (sparse_weight(0.95, shape) != 0)).astype(kind)
    assert np.signbit(weight[weight == 0]).any()
    plain = made_of(weight)
    encoded = sparsify(plain, encoding, "fp32")
    assert bits(restore(encoded)) == bits(plain)
    assert run(encoded)[0].tobytes() == weight.tobytes()
    if encoding != "dense" and shape == (100, 100) and kind == np.float32:
        assert labels(encoded)["w"].endswith("+signed")
        values = weight.itemsize * np.count_nonzero(weight)
        assert encoded.ByteSize() < (3 if encoding == "sparse" else 1) * values + 2 * weight.size / 8 + 1500
    if encoding not in ("sparse", "compact"):
        assert ReferenceEvaluator(encoded).run(None, {})[0].tobytes() == weight.tobytes()


def test_every_bit_of_nan_beside_negative_zeros() -> None:
    """A product would make a quiet NaN of a signalling one."""
    weight = sparse_weight(0.95, (100, 100)) * np.float32(-1)
    weight.view(np.uint32)[3, :2] = 0x7F800001
    encoded = sparsify(made_of(weight), "compact", "fp32")
    assert "signed" not in labels(encoded)["w"]
    assert run(encoded)[0].tobytes() == weight.tobytes()


def made_of(weight: Array) -> onnx.ModelProto:
    """A model that gives its weight."""
    kind = helper.np_dtype_to_tensor_dtype(weight.dtype)
    outputs = [helper.make_tensor_value_info("y", kind, list(weight.shape))]
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    graph = helper.make_graph(nodes, "weight", [], outputs, [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_negative_zeros_of_weights_are_cleared_and_no_others() -> None:
    weight = sparse_weight() * np.float32(-1)
    assert np.signbit(weight[weight == 0]).any()
    model = onnx_layer(weight)
    model.graph.node.append(helper.make_node("Div", ["y", "d"], ["z"]))
    model.graph.initializer.append(numpy_helper.from_array(np.full(40, -0.0, dtype=np.float32), "d"))
    clear_negative_zeros(model)
    assert not np.signbit(tensors(model)["w"][weight == 0]).any()
    assert np.signbit(tensors(model)["d"]).all()
    assert np.array_equal(tensors(model)["w"], weight)


def test_a_weight_that_callers_may_override_stays() -> None:
    weight = sparse_weight()
    model = onnx_layer(weight)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, list(weight.shape)))
    assert labels(sparsify(model, "gap8", "fp32")) == {"w": "dense"}


def test_before_ir_4_every_weight_was_an_input() -> None:
    weight = sparse_weight()
    model = onnx_layer(weight, opset=11)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, list(weight.shape)))
    model.ir_version = 3
    encoded = sparsify(model, "gap8", "fp32")
    onnx.checker.check_model(encoded)
    assert [value.name for value in encoded.graph.input] == ["x"]
    x = np.ones((2, 60), dtype=np.float32)
    assert np.allclose(run(encoded, x=x)[0], x @ weight.T, atol=1e-5)


def test_sub_graphs_see_the_rebuilt_weight() -> None:
    weight = sparse_weight()
    branch = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["b"], transB=1)],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n", 40])],
    )
    model = onnx_layer(weight)
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    encoded = sparsify(model, "gap8", "fp32")
    assert labels(encoded) == {"w": "gap8"}
    x = np.ones((2, 60), dtype=np.float32)
    assert np.allclose(run(encoded, x=x, c=np.array(True))[0], x @ weight.T, atol=1e-5)


@pytest.mark.parametrize(("encoding", "label"), [("bitmask", "bitmask"), ("gap8", "gap8"), ("sparse", "dense")])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_weights_of_quantized_models(encoding: str, label: str, kind: Any) -> None:
    """Nine bytes a non-zero are no gain here, two are."""
    whole = np.abs(sparse_weight(0.8) * 30).astype(kind)
    layer = onnx_layer(sparse_weight())
    layer.graph.node[0].input[1] = "wide"
    layer.graph.node.insert(0, helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["wide"]))
    del layer.graph.initializer[:]
    constants = {"w": whole, "scale": np.array(0.1, dtype=np.float32), "zero": np.array(0, dtype=kind)}
    layer.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    encoded = sparsify(layer, encoding, "int8")
    assert labels(encoded)["w"] == label
    assert bits(restore(encoded)) == bits(layer)
    x = np.ones((2, 60), dtype=np.float32)
    assert np.array_equal(run(encoded, x=x)[0], run(layer, x=x)[0])


def test_other_kinds_of_numbers_stay_as_they_are() -> None:
    model = onnx_layer(sparse_weight())
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1000, dtype=np.int32), "zeros"))
    encoded = sparsify(model, "compact", "int8")
    assert labels(encoded) == {"w": "gap8+int8", "words": "dense", "zeros": "dense"}
    assert bits(restore(encoded)).keys() == {"w", "words", "zeros"}


@pytest.mark.parametrize(("encoding", "values"), [("gap8", "fp32"), ("compact", "fp32"), ("sparse", "fp16")])
def test_an_opset_without_the_operators(encoding: str, values: str) -> None:
    with pytest.raises(InputError, match=r"the model uses opset 10, all .* need 11: choose sparse with fp32, export"):
        sparsify(onnx_layer(sparse_weight(), opset=10), encoding, values)


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
def test_sparse_initializers_need_no_operators(opset: int) -> None:
    weight = sparse_weight()
    model = onnx_layer(weight, opset=opset)
    model.graph.node[0].input.append("b")  # it was no option then
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(40, dtype=np.float32), "b"))
    encoded = sparsify(model, "sparse", "fp32")
    assert labels(encoded)["w"] == "sparse"
    x = np.ones((2, 60), dtype=np.float32)
    assert np.allclose(run(encoded, x=x)[0], x @ weight.T, atol=1e-5)


def test_a_name_that_is_taken() -> None:
    model = onnx_layer(sparse_weight())
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, dtype=np.float32), "w/gaps"))
    with pytest.raises(InputError, match="the model has a value 'w/gaps', a name that the encoding needs"):
        sparsify(model, "gap8", "fp32")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "{",
            "[]",
            '{"tensors": 3}',
            '{"tensors": {"w": 3}}',
            '{"accuracy": NaN}',
            '"\\ud800"',
            '{"recipe": "\\ud800"}',
        ),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"flops": ' + "9" * 5000 + "}", id="long"),
    ],
)
def test_damaged_metadata(text: str) -> None:
    model = onnx_layer(sparse_weight())
    helper.set_model_props(model, {"rigl_compress": text})
    with pytest.raises(InputError, match="the metadata 'rigl_compress' of the model is damaged"):
        metadata_of(model)


@pytest.mark.parametrize("label", ["bitmask", "gap8+fp16", "dense", "sparse", "steps", "gap9", "gap8+fp7", "+", ""])
def test_metadata_that_do_not_fit_the_file(label: str) -> None:
    """The operators decide, and stay."""
    model = sparsify(onnx_layer(sparse_weight()), "gap8", "fp32")
    helper.set_model_props(model, {"rigl_compress": json.dumps({"tensors": {"w": label, "nobody": "gap8"}})})
    with pytest.warns(UserWarning, match="^'w', 'nobody': the operators differ from the encoding in the metadata"):
        left = restore(model)
    assert left.graph == model.graph
    assert labels(model).keys() == {tensor.name for tensor in model.graph.initializer}


# Indices


@pytest.mark.parametrize("array", [[0], [5], [0, 1, 2], [3, 4, 700], [0, 65535], [7, 7]])
def test_indices_come_back(array: list[int]) -> None:
    encoded = encode_indices("i", np.array(array))
    assert encoded is not None
    parts = {tensor.name.removeprefix("i/"): numpy_helper.to_array(tensor) for tensor in encoded.initializers}
    assert decode_indices(parts).tolist() == array


@pytest.mark.parametrize("array", [[], [3, 1], [-1, 2], [0, 65536], [[1, 2]], [0.5]])
def test_other_numbers_are_no_indices(array: Any) -> None:
    assert encode_indices("i", np.array(array)) is None
