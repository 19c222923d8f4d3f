"""Files on disk: whole or not at all, and an error of one sentence for what cannot be read."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import snapshot, untouched

from rigl_compress.core import artifacts
from rigl_compress.core.artifacts import atomic_path, load_artifact, read_json, save_artifact, write_json, write_text
from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False]), "c": torch.tensor(7)}


def error_of(path: Path, kind: str = "thing") -> str:
    with pytest.raises(InputError) as caught:
        load_artifact(path, kind)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert str(path) in message
    return message


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "x.safetensors"
    save_artifact(path, "thing", TENSORS, {"names": ["ä"], "step": 3})
    return path


def test_round_trip(saved: Path) -> None:
    tensors, content = load_artifact(saved, "thing")
    assert content == {"names": ["ä"], "step": 3}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert torch.equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_views_and_graphs_are_saved_as_values(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3).requires_grad_()
    save_artifact(tmp_path / "x", "thing", {"turned": weight.t(), "part": weight[:, 1]}, {})
    tensors, _ = load_artifact(tmp_path / "x", "thing")
    assert tensors["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert tensors["part"].tolist() == [1, 4]


def test_it_is_safetensors_and_not_pickle(saved: Path) -> None:
    content = saved.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length]).keys() == {"a", "b", "c", "__metadata__"}


def test_a_pipe_or_a_device_is_never_replaced(tmp_path: Path) -> None:
    """As root, `--output /dev/null` would put a plain file in the place of the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a device or a pipe, not a file"):
        write_text(pipe, "text")
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


# A failing write leaves the old file


def test_a_failing_block_leaves_the_old_file(saved: Path) -> None:
    def half_done() -> None:
        with atomic_path(saved) as temporary:
            temporary.write_text("half of")
            raise RuntimeError

    with untouched(saved.parent), pytest.raises(RuntimeError):
        half_done()


def test_an_interrupted_save_leaves_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(path: Path, content: bytes) -> None:
        path.write_text("half of")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with untouched(saved.parent), pytest.raises(OSError, match="No space left"):
        save_artifact(saved, "thing", {"a": torch.zeros(1)}, {})


@pytest.mark.parametrize("content", [{"x": object()}, {"x": {1, 2}}])
def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path: Path, content: object) -> None:
    write_json(tmp_path / "a.json", {"x": 1})
    with untouched(tmp_path), pytest.raises(TypeError):
        write_json(tmp_path / "a.json", content)


def test_the_new_file_appears_at_the_end_of_the_block(saved: Path) -> None:
    before = saved.read_bytes()
    with atomic_path(saved) as temporary:
        temporary.write_text("new")
        assert saved.read_bytes() == before
        assert temporary.parent == saved.parent, "renaming is atomic within a file system alone"
    assert snapshot(saved.parent) == {saved.name: b"new"}


def test_folders_are_made(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "ö")
    assert (tmp_path / "a" / "b" / "c.txt").read_text(encoding="utf-8") == "ö"


# What cannot be read


def test_a_missing_file(tmp_path: Path) -> None:
    assert "missing or damaged: create it again" in error_of(tmp_path / "none.safetensors")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    assert "is a folder, a device or a pipe, not a file" in error_of(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 8, 40, -1])
def test_a_truncated_file(saved: Path, keep: int) -> None:
    saved.write_bytes(saved.read_bytes()[:keep])
    assert "missing or damaged: create it again" in error_of(saved)


@pytest.mark.parametrize("content", [b"PK\x03\x04 a pickle of torch.save", b"\xff" * 100, b"\0" * 100, b"text\n" * 9])
def test_another_format(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    assert "missing or damaged: create it again" in error_of(path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_foreign_safetensors_file(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x", metadata=metadata)
    assert "holds a 'foreign safetensors file', not a 'thing'" in error_of(tmp_path / "x")


@pytest.mark.parametrize("header", ["not JSON", "[]", "3"])
def test_a_header_that_is_not_ours(tmp_path: Path, header: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x", metadata={"rigl_compress": header})
    error_of(tmp_path / "x")


def test_another_kind(tmp_path: Path) -> None:
    Topology.full({"fc": (2, 2)}).save(tmp_path / "x")
    assert "holds a 'topology', not a 'thing'" in error_of(tmp_path / "x")


def test_another_format_number(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "FORMAT", 2)
    assert "has format 1, this version reads 2: create it again" in error_of(saved)


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe"])
def test_damaged_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.json") as caught:
        read_json(tmp_path / "a.json")
    assert len(str(caught.value).splitlines()) == 1


def test_missing_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*none\.json.*; restore the file or start the run again"):
        read_json(tmp_path / "none.json")


def test_tied_tensors_are_saved_under_each_of_their_names(tmp_path: Path) -> None:
    weight = torch.arange(4.0)
    save_artifact(tmp_path / "x", "thing", {"a": weight, "b": weight, "c": weight[1:]}, {})
    tensors, _ = load_artifact(tmp_path / "x", "thing")
    assert [tensors[name].tolist() for name in "abc"] == [[0, 1, 2, 3], [0, 1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("depth", [100, 900, 100_000])
def test_json_that_is_nested_deeply(tmp_path: Path, depth: int) -> None:
    (tmp_path / "a.json").write_text("[" * depth + "]" * depth)
    with pytest.raises(InputError, match=r"cannot read .*a\.json"):
        read_json(tmp_path / "a.json")
