"""From a network or a file to a file: what it says, and that nothing half-made is ever left."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import NETS, onnx_layer, sparse_net, sparse_weight
from tiny import untouched
from torch import nn

from rigl_compress import __version__, export_onnx
from rigl_compress.core.errors import InputError
from rigl_compress.exporters import verify
from rigl_compress.exporters.onnx_export import ExportedModel, Layout, read_exported, reencode
from rigl_compress.exporters.sparsify import encoding_names
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters


def run(path: Path, **inputs: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    outputs: list[Any] = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, inputs)
    return outputs


def tensors(path: Path) -> dict[str, bytes]:
    return {tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in onnx.load(path).graph.initializer}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model from elsewhere. No test may change it."""
    path = tmp_path_factory.mktemp("elsewhere") / "layer.onnx"
    onnx.save(onnx_layer(sparse_weight()), path)
    return path


@pytest.mark.parametrize(("name", "encoding"), [*zip(NETS, ["compact", "gap8", "sparse", "bitmask"], strict=True)])
def test_a_network_becomes_a_file_that_gives_its_outputs(name: str, encoding: str, tmp_path: Path) -> None:
    model, example = sparse_net(name)
    exported = export_onnx(model, example, tmp_path / "net.onnx", encoding=encoding)
    x = torch.cat([example] * 4)
    assert np.allclose(run(exported.path, input=x.numpy())[0], model(x).detach().numpy(), atol=1e-5)
    assert exported.difference < 1e-5
    assert exported.bytes == exported.path.stat().st_size
    assert {row.encoding for row in exported.tensors} >= {"dense", encoding if encoding != "compact" else "gap8"}
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_negative_zeros_of_folded_normalisation_take_no_space(tmp_path: Path) -> None:
    exported = export_onnx(*sparse_net("convolutions"), tmp_path / "net.onnx", encoding="compact")
    rows = {row.name: row for row in exported.tensors}
    assert rows["0.weight"].sparsity > 0.8
    assert rows["3.weight"].sparsity > 0.8


def lenet(sparsity: float) -> nn.Module:
    torch.manual_seed(0)
    model = ModelSpec("lenet-300-100").build()
    for parameter in sparse_parameters(model).values():
        parameter.data.view(-1)[torch.randperm(parameter.numel())[: int(sparsity * parameter.numel())]] = 0
    return model


@pytest.mark.parametrize(
    ("sparsity", "encoding", "most"), [(0.9, "compact", 137_500), (0.9, "sparse", 322_500), (0.98, "compact", 31_000)]
)
def test_a_lenet_is_as_small_as_promised(sparsity: float, encoding: str, most: int, tmp_path: Path) -> None:
    """With all that the export of a run says about it."""
    facts = {"recipe": "mnist-methods", "method": "rigl", "sparsity": 0.975124, "flops": 53240, "accuracy": 98.51}
    facts["source_sha256"] = "0" * 64
    example, path = torch.rand(1, 1, 28, 28), tmp_path / "lenet.onnx"
    exported = export_onnx(lenet(sparsity), example, path, encoding=encoding, facts=facts)
    assert 0.95 * most < exported.bytes <= most


@pytest.mark.parametrize("encoding", encoding_names())
@pytest.mark.parametrize("values", VALUES)
def test_any_file_there_and_back(encoding: str, values: str, plain: Path, tmp_path: Path) -> None:
    encoded = reencode(plain, tmp_path / "encoded.onnx", Layout(encoding, values))
    assert 0 <= encoded.difference <= VALUES[values].tolerance
    assert (encoded.difference == 0) == (values == "fp32")
    back = reencode(encoded.path, tmp_path / "back.onnx", Layout("dense"))
    assert back.difference == 0
    if values == "fp32":
        assert tensors(back.path) == tensors(plain)
    assert onnx.load(back.path).graph.node == onnx.load(plain).graph.node


def test_a_file_with_negative_zeros_there_and_back(tmp_path: Path) -> None:
    """As it comes from tools that multiply by masks; the network of a run, or fewer bits, have 0.0 in their place."""
    weight = -np.abs(sparse_weight())
    onnx.save(onnx_layer(weight), tmp_path / "in.onnx")
    for encoding in encoding_names():
        reencode(tmp_path / "in.onnx", tmp_path / "small.onnx", Layout(encoding), overwrite=True)
        reencode(tmp_path / "small.onnx", tmp_path / "back.onnx", Layout("dense"), overwrite=True)
        assert tensors(tmp_path / "back.onnx") == {"w": weight.tobytes()}
    exported = reencode(tmp_path / "in.onnx", tmp_path / "small.onnx", Layout("compact", "fp16"), overwrite=True)
    assert [row.encoding for row in exported.tensors] == ["gap8+fp16"]


def test_one_encoding_to_another(plain: Path, tmp_path: Path) -> None:
    first = reencode(plain, tmp_path / "first.onnx", Layout("bitmask"))
    second = reencode(first.path, tmp_path / "second.onnx", Layout("gap8"))
    direct = reencode(plain, tmp_path / "direct.onnx", Layout("gap8"))
    assert second.tensors == direct.tensors


def test_a_model_with_external_data_becomes_one_file(plain: Path, tmp_path: Path) -> None:
    source = tmp_path / "in" / "large.onnx"
    source.parent.mkdir()
    onnx.save(onnx.load(plain), source, save_as_external_data=True, location="large.data", size_threshold=0)
    exported = reencode(source, tmp_path / "out" / "small.onnx", Layout("gap8"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["small.onnx"]
    assert exported.tensors == reencode(plain, tmp_path / "other.onnx", Layout("gap8")).tensors


def test_inputs_of_ones_own(plain: Path, tmp_path: Path) -> None:
    inputs = {"x": np.full((5, 60), 3, dtype=np.float32)}
    assert reencode(plain, tmp_path / "out.onnx", inputs=inputs).difference == 0
    with untouched(tmp_path), pytest.raises(InputError, match="ONNX Runtime does not run the model"):
        reencode(plain, tmp_path / "other.onnx", inputs={"x": inputs["x"][:, :3]})


def test_words_and_other_kinds_survive(tmp_path: Path) -> None:
    model = onnx_layer(sparse_weight())
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
    model.graph.initializer.append(helper.make_tensor("brains", TensorProto.BFLOAT16, [3], [0, 1, 2]))
    onnx.save(model, tmp_path / "in.onnx")
    exported = reencode(tmp_path / "in.onnx", tmp_path / "out.onnx", Layout("compact"))
    assert {row.name: row.encoding for row in exported.tensors} == {"w": "gap8", "words": "dense", "brains": "dense"}


# What the file says


def test_metadata(plain: Path, tmp_path: Path) -> None:
    exported = reencode(plain, tmp_path / "out.onnx", Layout("gap8", "fp16", {"recipe": "mine"}))
    (entry,) = onnx.load(exported.path).metadata_props
    found = json.loads(entry.value)
    assert (entry.key, found["version"], found["encoding"], found["values"]) == (
        "rigl_compress",
        __version__,
        "gap8",
        "fp16",
    )
    assert found["recipe"] == "mine"
    assert found["source_sha256"] == hashlib.sha256(plain.read_bytes()).hexdigest()
    assert found["tensors"] == {"w": "gap8+fp16"}


def test_what_was_known_stays_known(plain: Path, tmp_path: Path) -> None:
    first = reencode(plain, tmp_path / "first.onnx", Layout("gap8", facts={"recipe": "mine", "accuracy": 98.5}))
    second = reencode(first.path, tmp_path / "second.onnx", Layout("bitmask"))
    assert (second.metadata["recipe"], second.metadata["accuracy"]) == ("mine", 98.5)
    assert second.metadata["encoding"] == "bitmask"
    assert second.metadata["source_sha256"] != first.metadata["source_sha256"]


def test_an_export_is_a_value(plain: Path, tmp_path: Path) -> None:
    exported = reencode(plain, tmp_path / "out.onnx", Layout("gap8"))
    assert ExportedModel.from_json(json.loads(json.dumps(exported.to_json()))) == exported
    assert read_exported(exported.path).tensors == exported.tensors
    with pytest.raises(InputError, match="the export has format 7"):
        ExportedModel.from_json({**exported.to_json(), "format": 7})


def test_the_same_file_every_time(plain: Path, tmp_path: Path) -> None:
    one, two = (reencode(plain, tmp_path / name, Layout("compact")) for name in ("one.onnx", "two.onnx"))
    assert one.path.read_bytes() == two.path.read_bytes()


# What can go wrong


@pytest.mark.parametrize(
    "check", ["check_valid", "check_folded", "check_zeros", "open_session", "run_session", "largest_difference"]
)
def test_a_failed_check_leaves_no_file(
    check: str, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise verify.VerificationError("no")

    monkeypatch.setattr(verify, check, fail)
    (tmp_path / "out.onnx").write_bytes(b"earlier")
    with untouched(tmp_path), pytest.raises(InputError, match="no"):
        reencode(plain, tmp_path / "out.onnx", Layout("gap8"), overwrite=True)


def test_outputs_too_far_off_leave_no_file(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setitem(VALUES._items, "int8", replace(VALUES["int8"], tolerance=1e-6))  # type: ignore[attr-defined]
    with untouched(tmp_path), pytest.raises(InputError, match="choose --values with more bits"):
        reencode(plain, tmp_path / "out.onnx", Layout("gap8", "int8"))


def test_an_existing_file_is_kept(plain: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    with untouched(tmp_path), pytest.raises(InputError, match=r"out\.onnx exists: choose another.* overwrite=True"):
        reencode(plain, target)
    with untouched(tmp_path), pytest.raises(InputError, match="exists"):
        export_onnx(*sparse_net("perceptron"), target)
    reencode(plain, target, overwrite=True)
    assert read_exported(target).tensors


def test_the_source_itself(plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "layer.onnx"
    path.write_bytes(plain.read_bytes())
    with untouched(tmp_path), pytest.raises(InputError, match="is the source itself: choose another name"):
        reencode(path, path)
    before = tensors(path)
    reencode(path, path, Layout("gap8"), overwrite=True)
    reencode(path, path, Layout("dense"), overwrite=True)
    assert tensors(path) == before


def test_a_pipe_for_an_output(plain: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="is a device or a pipe, not a file: use another name"):
        reencode(plain, tmp_path / "pipe", overwrite=True)
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_for_an_output(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder, not a file: use a name such as"):
        reencode(plain, tmp_path, overwrite=True)


@pytest.mark.parametrize(("encoding", "values"), [("gap9", "fp32"), ("sparse", "fp8")])
def test_unknown_names(encoding: str, values: str, tmp_path: Path) -> None:
    with untouched(tmp_path), pytest.raises(InputError, match=r"unknown (encoding|value type)"):
        export_onnx(*sparse_net("perceptron"), tmp_path / "out.onnx", encoding=encoding, values=values)
