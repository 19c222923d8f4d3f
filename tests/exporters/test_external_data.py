"""External data: nothing outside of a model's folder is ever read, wherever in the model it is asked for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.external_data import ExternalDataError
from rigl_compress.exporters.onnx_export import reencode
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.pipeline.bench.stage import _loaded
from rigl_compress.runtime.file_contents import read_contents
from rigl_compress.runtime.session import InferenceSession

SECRET = b"\0" * 80  # as long as the tensor that asks for it
WEIGHT = np.zeros((4, 5), dtype=np.float32)
PLACES: dict[str, Callable[[TensorProto], onnx.ModelProto]] = {}


def place(make: Callable[[TensorProto], onnx.ModelProto]) -> Callable[[TensorProto], onnx.ModelProto]:
    PLACES[make.__name__] = make
    return make


def with_node(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    model = onnx_layer(sparse_weight(0.9, (4, 5)))
    model.graph.node.extend(nodes)
    return model


def sub_graph(*nodes: onnx.NodeProto, initializer: Any = ()) -> onnx.GraphProto:
    last = helper.make_node("Identity", ["inner"], ["out"])
    return helper.make_graph(
        [*nodes, last], "branch", [], [helper.make_tensor_value_info("out", 1, None)], list(initializer)
    )


def branching(branch: onnx.GraphProto) -> onnx.ModelProto:
    model = with_node(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return model


@place
def initializer(tensor: TensorProto) -> onnx.ModelProto:
    tensor.name = "w"
    return onnx_layer(WEIGHT, initializer=[tensor])


@place
def sparse_values(tensor: TensorProto) -> onnx.ModelProto:
    tensor.dims[:] = [20]
    tensor.name = "w"
    indices = numpy_helper.from_array(np.arange(20), "i")
    return onnx_layer(WEIGHT, initializer=[], sparse_initializer=[helper.make_sparse_tensor(tensor, indices, [4, 5])])


@place
def sparse_indices(tensor: TensorProto) -> onnx.ModelProto:
    tensor.data_type, tensor.dims[:] = TensorProto.INT64, [10]
    values = numpy_helper.from_array(np.ones(10, dtype=np.float32), "w")
    return onnx_layer(WEIGHT, initializer=[], sparse_initializer=[helper.make_sparse_tensor(values, tensor, [4, 5])])


@place
def constant(tensor: TensorProto) -> onnx.ModelProto:
    return with_node(helper.make_node("Constant", [], ["k"], value=tensor))


@place
def sparse_constant(tensor: TensorProto) -> onnx.ModelProto:
    tensor.dims[:] = [20]
    sparse = helper.make_sparse_tensor(tensor, numpy_helper.from_array(np.arange(20), "i"), [4, 5])
    node = helper.make_node("Constant", [], ["k"])
    node.attribute.append(onnx.AttributeProto(name="sparse_value", sparse_tensor=sparse, type=11))
    return with_node(node)


@place
def attribute_list(tensor: TensorProto) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["x"], ["k"])
    node.attribute.append(onnx.AttributeProto(name="any", tensors=[tensor], type=onnx.AttributeProto.TENSORS))
    return with_node(node)


@place
def inner_initializer(tensor: TensorProto) -> onnx.ModelProto:
    tensor.name = "inner"
    return branching(sub_graph(initializer=[tensor]))


@place
def inner_constant(tensor: TensorProto) -> onnx.ModelProto:
    return branching(sub_graph(helper.make_node("Constant", [], ["inner"], value=tensor)))


@place
def function(tensor: TensorProto) -> onnx.ModelProto:
    model = with_node()
    node = helper.make_node("Constant", [], ["o"], value=tensor)
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Function", [], ["o"], [node], opsets))
    return model


@place
def training(tensor: TensorProto) -> onnx.ModelProto:
    model, info = with_node(), onnx.TrainingInfoProto()
    info.algorithm.CopyFrom(sub_graph(initializer=[tensor]))
    model.training_info.append(info)
    return model


def external(location: str = "w.data", **entries: Any) -> TensorProto:
    """A tensor [4, 5] in another file."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[4, 5], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for models, beside a file that is nobody's business."""
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    (folder / "m.onnx").write_bytes(model.SerializeToString())
    return folder / "m.onnx"


READERS: dict[str, Callable[[Path], Any]] = {
    "load": load_model,
    "inspect": read_contents,
    "export": lambda path: reencode(path, path.with_name("out.onnx")),
    "bench": _loaded,
    "session": InferenceSession,
    "session on bytes": lambda path: InferenceSession(path.read_bytes()),
    "session elsewhere": lambda path: InferenceSession(path, providers=["AzureExecutionProvider"]),
}


@pytest.mark.parametrize("where", PLACES)
def test_a_link_out_of_the_folder_is_refused_in_every_place(where: str, folder: Path) -> None:
    (folder / "w.data").symlink_to("../secret")
    with pytest.raises(ExternalDataError, match="outside the model's folder"):
        load_model(saved(folder, PLACES[where](external())))


@pytest.mark.parametrize("where", [place for place in PLACES if place not in ("attribute_list", "training")])
def test_a_file_within_the_folder_is_read_in_every_place(where: str, folder: Path) -> None:
    (folder / "w.data").write_bytes(np.arange(10).astype(np.int64).tobytes())
    model = load_model(saved(folder, PLACES[where](external())))
    assert b"w.data" not in model.SerializeToString()
    assert np.arange(10).astype(np.int64).tobytes() in model.SerializeToString()


def symbolic(folder: Path) -> None:
    (folder / "w.data").symlink_to(folder.parent / "secret")


def through_a_folder(folder: Path) -> None:
    (folder / "sub").symlink_to("..")


def hard(folder: Path) -> None:
    os.link(folder.parent / "secret", folder / "w.data")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "w.data")


def subfolder(folder: Path) -> None:
    (folder / "w.data").mkdir()


def device(folder: Path) -> None:
    (folder / "w.data").symlink_to("/dev/zero")


def circle(folder: Path) -> None:
    (folder / "w.data").symlink_to("w.data")


def nothing(folder: Path) -> None:
    (folder / "w.data").write_bytes(SECRET)


ATTACKS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "symbolic link": (symbolic, {}),
    "link of a folder": (through_a_folder, {"location": "sub/secret"}),
    "hard link": (hard, {}),
    "pipe": (pipe, {}),
    "folder": (subfolder, {}),
    "device": (device, {}),
    "link to itself": (circle, {}),
    "parent": (nothing, {"location": "../secret"}),
    "parent within": (nothing, {"location": "sub/../../secret"}),
    "parent of another system": (nothing, {"location": "..\\secret"}),
    "absolute": (nothing, {"location": "/etc/passwd"}),
    "a drive": (nothing, {"location": "C:\\secret"}),
    "none": (nothing, {"location": ""}),
    "zero byte": (nothing, {"location": "w.data\0"}),
    "memory": (nothing, {"location": "*/_ORT_MEM_ADDR_/*", "offset": 4096, "length": 80}),
    "negative offset": (nothing, {"offset": -8}),
    "no number": (nothing, {"length": "1e3"}),
    "a number of many digits": (nothing, {"offset": "9" * 5000}),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_lets_a_file_reach_out(
    attack: str, reader: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # where a session on bytes would look
    prepare, entries = ATTACKS[attack]
    prepare(folder)
    path = saved(folder, initializer(external(**entries)))
    with pytest.raises(ExternalDataError) as caught:
        READERS[reader](path)
    assert "\n" not in str(caught.value)
    assert not (folder / "out.onnx").exists()


@pytest.mark.parametrize(
    "entries", [{"offset": 8}, {"offset": 2**62}, {"length": 76}, {"length": 0}, {"length": 2**50, "offset": 0}]
)
def test_bytes_that_are_not_there(entries: dict[str, int], folder: Path) -> None:
    nothing(folder)
    with pytest.raises(InputError, match="needs 80 bytes, its external data are"):
        load_model(saved(folder, initializer(external(**entries))))


def test_an_entry_given_twice(folder: Path) -> None:
    nothing(folder)
    tensor = external()
    tensor.external_data.add(key="location", value="other")
    with pytest.raises(ExternalDataError, match="two entries 'location'"):
        load_model(saved(folder, initializer(tensor)))


def test_a_link_that_stays_within_the_folder(folder: Path) -> None:
    (folder / "real.data").write_bytes(SECRET)
    (folder / "w.data").symlink_to("real.data")
    assert load_model(saved(folder, initializer(external(offset=0, length=80)))).graph.initializer[0].raw_data == SECRET


def test_a_deeper_folder(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "w.data").write_bytes(b"before" + SECRET)
    model = load_model(saved(folder, initializer(external("sub/w.data", offset=6))))
    assert model.graph.initializer[0].raw_data == SECRET
