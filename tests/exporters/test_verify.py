"""Each check must be able to fail."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.exporters import verify
from rigl_compress.exporters.ort_sessions import SessionError, open_session, run_session
from rigl_compress.exporters.random_inputs import random_inputs
from rigl_compress.exporters.sparsify import encoding_names, sparsify
from rigl_compress.exporters.verify import VerificationError


@pytest.fixture
def encoded() -> onnx.ModelProto:
    return sparsify(onnx_layer(sparse_weight()), "bitmask", "fp32")


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


X = {"x": np.ones((2, 60), dtype=np.float32)}


def expected() -> list[Any]:
    return [X["x"] @ sparse_weight().T]


@pytest.mark.parametrize("encoding", encoding_names())
def test_a_good_file_passes(encoding: str, tmp_path: Path) -> None:
    path = saved(sparsify(onnx_layer(sparse_weight()), encoding, "fp32"), tmp_path)
    assert verify.check_file(path, [X], [expected()], 1e-4) < 1e-6


def test_other_outputs(encoded: onnx.ModelProto, tmp_path: Path) -> None:
    wrong = [expected()[0] * 1.01]
    with pytest.raises(VerificationError, match=r"the outputs differ by 0\.0099 of the largest, 0\.0001 is allowed"):
        verify.check_file(saved(encoded, tmp_path), [X], [wrong], 1e-4)


def test_outputs_that_are_no_numbers(encoded: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="the outputs differ by inf"):
        verify.check_file(saved(encoded, tmp_path), [X], [[expected()[0] * np.nan]], 1e-4)


def test_outputs_of_another_shape(encoded: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="the outputs have shapes"):
        verify.check_file(saved(encoded, tmp_path), [X], [[expected()[0][:1]]], 1e-4)


def test_a_graph_that_is_not_folded(encoded: onnx.ModelProto, tmp_path: Path) -> None:
    del encoded.graph.value_info[:]  # without it, NonZero is computed in every run
    with pytest.raises(VerificationError, match="ONNX Runtime does not fold NonZero of 'w/found'"):
        verify.check_file(saved(encoded, tmp_path), [X], [expected()], 1e-4)


def test_a_graph_that_is_not_valid(encoded: onnx.ModelProto, tmp_path: Path) -> None:
    encoded.graph.node[0].input[0] = "nobody"
    with pytest.raises(VerificationError, match=r"does not pass onnx\.checker"):
        verify.check_file(saved(encoded, tmp_path), [X], [expected()], 1e-4)


def test_a_model_that_the_runtime_refuses() -> None:
    model = onnx_layer(sparse_weight())
    model.graph.node[0].op_type = "Gemma"
    with pytest.raises(SessionError, match="ONNX Runtime does not open the model"):
        open_session(model.SerializeToString())


def test_inputs_that_do_not_fit() -> None:
    session = open_session(onnx_layer(sparse_weight()).SerializeToString())
    with pytest.raises(SessionError, match="ONNX Runtime does not run the model") as caught:
        run_session(session, {"x": np.ones((2, 3), dtype=np.float32)})
    assert "\n" not in str(caught.value)


def test_a_weight_in_the_place_of_a_zero(encoded: onnx.ModelProto) -> None:
    other = onnx_layer(np.where(sparse_weight() == 0, 0, 2 * sparse_weight()).astype(np.float32))
    verify.check_zeros(encoded, other, exact=False)
    with pytest.raises(VerificationError, match="'w' is not stored bit by bit"):
        verify.check_zeros(encoded, other, exact=True)
    with pytest.raises(VerificationError, match="'w' has weights where the source has zeros"):
        verify.check_zeros(encoded, onnx_layer(sparse_weight(seed=1)), exact=False)


def test_a_network_whose_zeros_are_lost() -> None:
    weight = sparse_weight()
    verify.check_source_zeros(onnx_layer(weight), {"w": weight})
    verify.check_source_zeros(onnx_layer(np.zeros_like(weight)), {"w": weight})  # a scale of zero was folded
    with pytest.raises(VerificationError, match="'w' lost its zeros"):
        verify.check_source_zeros(onnx_layer(sparse_weight(seed=1)), {"w": weight})


def test_zeros_of_transposed_and_recurrent_weights() -> None:
    weight = sparse_weight()
    model = onnx_layer(weight)
    model.graph.initializer.append(numpy_helper.from_array(weight.T.copy(), "v.T"))
    model.graph.initializer.append(numpy_helper.from_array(weight[None, ::-1].copy(), "gru"))
    verify.check_source_zeros(model, {"v": weight, "gru": weight})
    with pytest.raises(VerificationError, match=r"'v\.T' lost its zeros"):
        verify.check_source_zeros(model, {"v": sparse_weight(seed=1), "gru": weight})
    with pytest.raises(VerificationError, match="'gru' lost its zeros"):
        verify.check_source_zeros(model, {"v": weight, "gru": sparse_weight(0.95)})


def test_zeros_of_both_directions_of_a_recurrent_weight() -> None:
    weights = {"gru": sparse_weight(0.95), "gru_reverse": sparse_weight(0.5, seed=2)}
    model = onnx_layer(sparse_weight())
    model.graph.initializer.append(numpy_helper.from_array(np.stack([*weights.values()]), "gru"))
    verify.check_source_zeros(model, weights)
    with pytest.raises(VerificationError, match="'gru' lost its zeros"):
        verify.check_source_zeros(model, weights | {"gru_reverse": sparse_weight(0.95)})


def test_random_inputs_of_every_kind() -> None:
    from onnx import TensorProto, helper

    names_of_kinds = ["FLOAT", "DOUBLE", "FLOAT16", "INT64", "INT32", "INT16", "UINT16", "UINT8", "UINT64", "BOOL"]
    kinds = [TensorProto.DataType.Value(name) for name in names_of_kinds]
    names = [f"x{number}" for number in range(len(kinds))]
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [f"y{name}"]) for name in names],
        "all",
        [helper.make_tensor_value_info(name, kind, ["n", 3]) for name, kind in zip(names, kinds, strict=True)],
        [helper.make_tensor_value_info(f"y{name}", kind, ["n", 3]) for name, kind in zip(names, kinds, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = open_session(model.SerializeToString())
    found = random_inputs(session, batch=4)
    assert {each.shape for each in found.values()} == {(4, 3)}
    assert run_session(session, found)
