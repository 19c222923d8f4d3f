"""Weights from anywhere: what is read, what is unwrapped, and what is refused in a sentence."""

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.sparse_parameters import shapes_of, sparse_parameters
from rigl_compress.models.topology import Topology
from rigl_compress.models.weight_files import read_weights

WEIGHTS = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.tensor([1.0, -1.0])}


def same(found: Any) -> bool:
    return found.keys() == WEIGHTS.keys() and all(torch.equal(found[name], each) for name, each in WEIGHTS.items())


def write_index(folder: Path, files: dict[str, str]) -> Path:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    return folder


def shards(folder: Path) -> Path:
    save_file({"fc.weight": WEIGHTS["fc.weight"]}, folder / "a.safetensors")
    save_file({"fc.bias": WEIGHTS["fc.bias"]}, folder / "b.safetensors")
    return write_index(folder, {"fc.weight": "a.safetensors", "fc.bias": "b.safetensors"})


def saved(name: str, content: Any = WEIGHTS, **how: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        torch.save(content, folder / name, **how)
        return folder / name

    return write


def as_safetensors(folder: Path) -> Path:
    save_file(WEIGHTS, folder / "model.safetensors")
    return folder / "model.safetensors"


@pytest.mark.parametrize(
    "write",
    [
        as_safetensors,
        lambda folder: as_safetensors(folder).parent,
        shards,
        saved("w.pt"),
        saved("w.pth", _use_new_zipfile_serialization=False),
        lambda folder: saved("pytorch_model.bin")(folder).parent,
    ],
)
def test_every_kind_of_file_and_folder(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    found = read_weights(write(tmp_path))
    assert same(found.tensors)
    assert found.notes == ()


@pytest.mark.parametrize(
    ("content", "notes"),
    [
        ({"state_dict": WEIGHTS, "epoch": 3}, ["the weights are its 'state_dict'"]),
        ({"model": {"state_dict": WEIGHTS}}, ["the weights are its 'model'.'state_dict'"]),
        ({f"module.{name}": each for name, each in WEIGHTS.items()}, ["names without their prefix 'module.'"]),
        (
            {"model": {f"_orig_mod.{name}": each for name, each in WEIGHTS.items()}},
            ["the weights are its 'model'", "names without their prefix '_orig_mod.'"],
        ),
        ({**WEIGHTS, "epoch": 3, "best": 0.5}, ["epoch, best left out, no tensors"]),
    ],
)
def test_what_training_scripts_put_around_weights_is_taken_off_and_said(
    tmp_path: Path, content: dict[str, Any], notes: list[str]
) -> None:
    found = read_weights(saved("w.pt", content)(tmp_path))
    assert same(found.tensors)
    assert [*found.notes] == notes


def test_a_sparse_model_of_ours(tmp_path: Path) -> None:
    spec = ModelSpec("mlp", {"hidden": [4], "classes": 3, "inputs": 5})
    model = spec.build()
    topology = Topology.full(shapes_of(sparse_parameters(model)))
    SparseModel.capture(spec, model, topology, 0, {}).save(tmp_path / "model.safetensors")
    found = read_weights(tmp_path).tensors
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], each) for name, each in model.state_dict().items())
    topology.save(tmp_path / "topology.safetensors")
    assert "holds a 'topology' of rigl-compress, not weights" in refusal(tmp_path / "topology.safetensors")


def test_a_dictionary_that_holds_itself(tmp_path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = content
    assert "no tensor" in refusal(saved("w.pt", content)(tmp_path))


# Refused


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_weights(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


ran: list[str] = []


class Attack:
    """Runs code where pickles are trusted."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (ran.append, ("ran",))


def test_a_pickle_that_runs_code_does_not(tmp_path: Path) -> None:
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(Attack()))
    for path in (saved("w.pt", {"x": Attack()})(tmp_path), tmp_path / "plain.pth"):
        refusal(path)
    message = refusal(saved("whole.pt", nn.Linear(2, 2))(tmp_path))
    assert "holds a torch.nn.modules.linear.Linear beside weights, which could run code" in message
    assert "torch.save(model.state_dict()" in message
    assert not ran


def bomb(folder: Path) -> Path:
    """An archive of torch's, compressed: its zeros unpack to a hundred times its size."""
    buffer = io.BytesIO()
    torch.save({"w": torch.zeros(100_000)}, buffer)
    with (
        zipfile.ZipFile(buffer) as plain,
        zipfile.ZipFile(folder / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    return folder / "bomb.pt"


def oversized(folder: Path) -> Path:
    """A header of safetensors that asks for more than the file has."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder / "w.safetensors"


def cut(folder: Path) -> Path:
    path = saved("cut.pt", {"w": torch.zeros(5000)})(folder)
    path.write_bytes(path.read_bytes()[:9000])
    return path


def text(name: str, content: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_text(content)
        return folder / name

    return write


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder: folder / "no.safetensors", "no.safetensors does not exist: pass a .safetensors, .pt or .pth"),
        (lambda folder: folder, "has no weights in it, expected model.safetensors, model.safetensors.index.json"),
        (text("w.onnx", ""), "does not have the name of a file of weights: pass a .safetensors"),
        (text("w.safetensors", "nonsense"), "cannot read"),
        (text("w.pt", "nonsense"), "pass what torch.save(model.state_dict(), …) wrote, or safetensors"),
        (oversized, "cannot read"),
        (bomb, "bytes, more than it has: torch.save does not compress"),
        (cut, "the file is damaged, fetch it again"),
        (saved("list.pt", [torch.zeros(2)]), "holds a list, expected a dictionary of tensors"),
        (saved("none.pt", {"epoch": 3}), "holds no tensor among 1 entries"),
        (saved("meta.pt", {"w": torch.zeros(2, device="meta")}), "'w' is a sparse or quantized tensor"),
        (saved("coo.pt", {"w": torch.eye(2).to_sparse()}), "'w' is a sparse or quantized tensor"),
        (lambda folder: write_index(folder, {"w": "../w.safetensors"}), "names '../w.safetensors', expected files"),
        (lambda folder: write_index(folder, {"w": 3}), "has no weight_map of names and files"),  # type: ignore[dict-item]
    ],
)  # fmt: skip
def test_what_is_no_file_of_weights(tmp_path: Path, write: Callable[[Path], Path], message: str) -> None:
    assert message in refusal(write(tmp_path))


def test_every_cut_and_flipped_byte_is_a_sentence_or_weights(tmp_path: Path) -> None:
    """Damaged files of each format end in an `InputError`, never in anything else."""
    random = torch.Generator().manual_seed(0)
    for write in (as_safetensors, saved("w.pt"), saved("old.pth", _use_new_zipfile_serialization=False)):
        path = write(tmp_path)
        whole = path.read_bytes()
        for place in torch.randint(len(whole), (60,), generator=random).tolist():
            for damaged in (whole[:place], whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :]):
                path.write_bytes(damaged)
                with suppress(InputError):
                    assert all(isinstance(each, Tensor) for each in read_weights(path).tensors.values())
