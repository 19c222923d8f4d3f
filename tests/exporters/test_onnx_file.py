"""Files that are no models, or only half of one: an error of one sentence each."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.core.errors import InputError
from rigl_compress.exporters import onnx_file
from rigl_compress.exporters.onnx_file import load_bytes, load_model, opset_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "layer.onnx"
    onnx.save(onnx_layer(sparse_weight()), path)
    return path


@pytest.fixture
def with_external_data(tmp_path: Path) -> Path:
    path = tmp_path / "large.onnx"
    onnx.save(onnx_layer(sparse_weight()), path, save_as_external_data=True, location="large.data", size_threshold=0)
    return path


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model(file: Path) -> None:
    assert opset_of(load_model(file)) == 17


def test_a_missing_file(tmp_path: Path) -> None:
    assert "does not exist: pass a run folder or an ONNX file" in refused(tmp_path / "none.onnx")


def test_a_folder(tmp_path: Path) -> None:
    assert "is a folder, expected an ONNX file" in refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello world, this is a text", b"\x00" * 100, b"PK\x03\x04rest of a zip"])
def test_no_onnx_at_all(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert "is not an ONNX" in refused(file)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.99, 0.999])
def test_a_truncated_file(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    assert "ONNX" in refused(file)


def test_external_data_is_read(with_external_data: Path) -> None:
    (tensor,) = load_model(with_external_data).graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(tensor), sparse_weight())


def test_external_data_missing(with_external_data: Path) -> None:
    (with_external_data.parent / "large.data").unlink()
    assert "large.data with the values of 'w' is missing: put it beside the model" in refused(with_external_data)


def test_external_data_cut_short(with_external_data: Path) -> None:
    data = with_external_data.parent / "large.data"
    data.write_bytes(data.read_bytes()[:100])
    assert "large.onnx" in refused(with_external_data)


def test_external_data_outside_of_the_folder(with_external_data: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    model = onnx.load(with_external_data, load_external_data=False)
    next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location").value = "../large.data"
    (inner / "model.onnx").write_bytes(model.SerializeToString())
    shutil.copy(tmp_path / "large.data", inner)
    assert "outside the model's folder" in refused(inner / "model.onnx")


def test_more_than_two_gigabytes(file: Path, with_external_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST_FILE", 5000)
    assert "is larger than 2 GiB, more than an ONNX file can hold" in refused(file)
    assert "is larger than 2 GiB with its external data" in refused(with_external_data)


def test_an_unknown_data_type(file: Path) -> None:
    model = onnx.load(file)
    model.graph.initializer[0].data_type = 99
    file.write_bytes(model.SerializeToString())
    assert "'w' has the unknown data type 99: update onnx" in refused(file)


def test_an_invalid_graph(file: Path) -> None:
    model = onnx.load(file)
    model.graph.node[0].input[0] = "nobody"
    file.write_bytes(model.SerializeToString())
    assert "is not a valid ONNX model (" in refused(file)


def test_outputs_without_a_shape_are_as_good_as_others(tmp_path: Path) -> None:
    """ONNX Runtime takes them, and files of older exporters have them."""
    value = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "a.onnx")
    assert load_model(tmp_path / "a.onnx") == load_bytes(model.SerializeToString()) == model
