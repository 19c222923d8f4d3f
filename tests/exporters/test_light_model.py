"""Models whose large weights are read one by one hold what models that are loaded whole hold."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import NETS, onnx_layer, plain_model, sparse_weight

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.external_data import ExternalDataError
from rigl_compress.exporters.light_model import as_inputs, fill, light_model
from rigl_compress.exporters.onnx_file import load_bytes, load_model
from rigl_compress.exporters.protobuf_scan import LARGE, ScanError, is_hollow, scan_model
from rigl_compress.runtime.session import InferenceSession

LAYER = onnx_layer(sparse_weight(0.9, (70, 100)))
CONTENT = LAYER.SerializeToString()


def hollow_names(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer if is_hollow(tensor)}


def usual(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without what says nothing of a weight: empty texts, values that are where they are by default."""
    for tensor in model.graph.initializer:
        tensor.ClearField("doc_string")
        if tensor.data_location == TensorProto.DEFAULT:
            tensor.ClearField("data_location")
    return model


@pytest.mark.parametrize("net", NETS)
def test_nothing_is_lost(net: str) -> None:
    content = plain_model(net).SerializeToString()
    with light_model(content) as light:
        fill(light.model, light.weights)
        assert usual(light.model) == usual(load_bytes(content))


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int8, np.uint8])
def test_large_weights_are_left_in_the_file(kind: Any, tmp_path: Path) -> None:
    weight = np.arange(9000).reshape(90, 100).astype(kind)
    model = onnx_layer(sparse_weight(0.9, (70, 100)))
    model.graph.initializer.append(numpy_helper.from_array(weight, "extra"))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    with light_model(str(path)) as light:
        assert "extra" in hollow_names(light.model)
        assert light.weights["extra"].dtype == kind
        assert np.array_equal(light.weights["extra"], weight)
        assert light.model.ByteSize() < LARGE
        onnx.checker.check_model(as_inputs(light.model))


def with_tensor(**fields: Any) -> onnx.ModelProto:
    model = onnx_layer(sparse_weight(0.9, (70, 100)))
    model.graph.initializer.append(TensorProto(**fields))
    return model


WHOLE = {
    "numbers": with_tensor(name="f", dims=[2000], data_type=TensorProto.FLOAT, float_data=[0.5] * 2000),
    "integers": with_tensor(name="i", dims=[1000], data_type=TensorProto.INT64, raw_data=bytes(8000)),
}


@pytest.mark.parametrize("case", WHOLE)
def test_other_tensors_keep_their_values(case: str) -> None:
    with light_model(WHOLE[case].SerializeToString()) as light:
        assert len(hollow_names(light.model)) == 1
        fill(light.model, light.weights)
        assert light.model == WHOLE[case]


REFUSED = {
    "too few bytes": with_tensor(name="a", dims=[3000], data_type=TensorProto.FLOAT, raw_data=bytes(8000)),
    "a negative length": with_tensor(name="a", dims=[-1, 2000], data_type=TensorProto.FLOAT, raw_data=bytes(8000)),
    "two kinds of values": with_tensor(
        name="a", dims=[2000], data_type=TensorProto.FLOAT, raw_data=bytes(8000), float_data=[1.0]
    ),
    "no location": with_tensor(name="a", dims=[2000], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL),
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_tensors_are_refused_as_before(case: str) -> None:
    content = REFUSED[case].SerializeToString()
    with pytest.raises(InputError) as whole:
        load_bytes(content)
    with pytest.raises(InputError) as light, light_model(content):
        pass
    assert str(light.value) == str(whole.value)


def test_two_initializers_of_one_name() -> None:
    model = onnx_layer(sparse_weight(0.9, (70, 100)))
    model.graph.initializer.append(model.graph.initializer[0])
    with pytest.raises(ScanError):
        scan_model(BytesIO(model.SerializeToString()))


def outcome(content: bytes, light: bool) -> onnx.ModelProto | None:
    """The model, or nothing where it is refused."""
    try:
        if not light:
            return usual(load_bytes(content))
        with light_model(content) as found:
            fill(found.model, found.weights)
            return usual(found.model)
    except InputError:
        return None


@settings(deadline=None, max_examples=150)
@given(position=st.integers(0, len(CONTENT) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_damaged_files_give_what_parsing_them_whole_gives(position: int, byte: int, cut: bool) -> None:
    # Most bytes are values: look at the fields before and after them more often.
    position = position if position % 3 else min(position % 300, len(CONTENT) - 1)
    damaged = CONTENT[:position] if cut else CONTENT[:position] + bytes([byte]) + CONTENT[position + 1 :]
    assert outcome(damaged, light=True) == outcome(damaged, light=False)


def external(folder: Path, location: str) -> Path:
    model = onnx.ModelProto()
    model.CopyFrom(LAYER)
    tensor = next(each for each in model.graph.initializer if len(each.dims) == 2)
    (folder / "values.bin").write_bytes(bytes(64) + tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": "64", "length": "28000"}
    tensor.external_data.extend(onnx.StringStringEntryProto(key=key, value=value) for key, value in entries.items())
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_external_data_are_read_when_they_are_needed(tmp_path: Path) -> None:
    path = external(tmp_path, "values.bin")
    with light_model(str(path)) as light:
        (name,) = hollow_names(light.model)
        assert np.array_equal(light.weights[name], numpy_helper.to_array(LAYER.graph.initializer[0]))
        fill(light.model, light.weights)
        assert light.model == usual(load_model(path))
        (tmp_path / "values.bin").unlink()
        (tmp_path / "values.bin").symlink_to("/dev/zero")  # the file is checked each time it is opened
        with pytest.raises(ExternalDataError):
            light.weights[name]


@pytest.mark.parametrize("location", ["../values.bin", "/etc/passwd", "link.bin", "hard.bin", "*/1"])
def test_external_data_outside_of_the_folder(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "values.bin").write_bytes(bytes(30000))
    (folder / "link.bin").symlink_to(tmp_path / "values.bin")
    path = external(folder, location)
    os.link(tmp_path / "values.bin", folder / "hard.bin")
    with pytest.raises(ExternalDataError), light_model(str(path)):
        pass
    with pytest.raises(ExternalDataError):
        InferenceSession(path)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(CONTENT)
    with light_model(str(path)) as light:
        (name,) = hollow_names(light.model)
        os.truncate(path, 1000)
        with pytest.raises(InputError, match="was changed while it was read"):
            light.weights[name]


def test_weights_that_callers_may_override_stay_inputs() -> None:
    model = onnx_layer(sparse_weight(0.9, (70, 100)))
    weight = model.graph.initializer[0]
    model.graph.input.append(helper.make_tensor_value_info(weight.name, TensorProto.FLOAT, weight.dims))
    with light_model(model.SerializeToString()) as light:
        checked = as_inputs(light.model)
        assert [value.name for value in checked.graph.input].count(weight.name) == 1
        fill(light.model, light.weights)
        assert light.model == model
