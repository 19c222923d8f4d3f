"""Encodings from outside of the package: by registration, by reference, and what a file may not name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from rigl_compress.exporters.encodings import ENCODINGS, Encoding, decode_gap8, encode_gap8, register_encoding
from rigl_compress.exporters.onnx_export import Layout
from rigl_compress.exporters.restore import rebuilt_tensors, restore
from rigl_compress.exporters.sparsify import encoding_names, encodings_to_try, metadata_of, sparsify, write_metadata

CODE = """
from dataclasses import replace
from rigl_compress.exporters.encodings import ENCODINGS

OWN = replace(ENCODINGS["gap8"], name="own-gaps")
TAKEN = replace(ENCODINGS["gap8"], about="another one")
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, registries: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_encodings.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_encodings", None)


@pytest.fixture
def plain() -> onnx.ModelProto:
    weight = np.diag(np.arange(1, 65, dtype=np.float32))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 64])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])


def test_a_registered_encoding_is_one_of_them(plain: onnx.ModelProto) -> None:
    register_encoding(Encoding("mine", encode_gap8, decode_gap8, "gaps", ("gaps", "values", "shape")))
    assert "mine" in encoding_names()
    assert encodings_to_try("mine") == ("dense", "mine")
    assert "mine" not in encodings_to_try("compact"), "a file is to be opened without it"
    model = sparsify(plain, "mine", "fp32")
    assert metadata_of(model)["tensors"] == {"w": "mine"}
    assert rebuilt_tensors(model)[1] == []


def test_an_encoding_by_reference_is_written_by_its_name(plain: onnx.ModelProto) -> None:
    assert Layout("own_encodings:OWN").encoding == "own_encodings:OWN"
    model = sparsify(plain, "own_encodings:OWN", "fp32")
    assert metadata_of(model)["tensors"] == {"w": "own-gaps"}
    (weight,) = restore(model).graph.initializer
    assert np.array_equal(onnx.numpy_helper.to_array(weight), np.diag(np.arange(1, 65, dtype=np.float32)))


def test_a_name_that_is_taken() -> None:
    with pytest.raises(ValueError, match="encoding 'gap8' is registered twice: choose another name"):
        encodings_to_try("own_encodings:TAKEN")


def test_an_unknown_encoding_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown encoding 'compct': did you mean 'compact'\? Known: bitmask"):
        encodings_to_try("compct")


@pytest.mark.parametrize("label", ["own_encodings:OWN", "own_encodings:OWN+fp16", "no-such-encoding"])
def test_a_file_names_no_code(plain: onnx.ModelProto, label: str) -> None:
    model = sparsify(plain, "gap8", "fp32")
    write_metadata(model, {"tensors": {"w": label}})
    with pytest.warns(UserWarning, match="'w': the operators differ from the encoding in the metadata"):
        restore(model)
    assert "own_encodings" not in sys.modules
    assert "own-gaps" not in ENCODINGS
