"""Inputs from .npz files: what they would take is looked at first."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline import npz_inputs as inputs_file
from rigl_compress.pipeline.npz_inputs import read_inputs


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def written(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(f"{name}.npy", content)
    return path


def test_arrays_of_every_kind(tmp_path: Path) -> None:
    arrays = {
        "a": np.zeros((2, 3), np.float32),
        "b": np.array(3),
        "c": np.zeros((0, 4)),
        "d": np.ones((2, 2), order="F"),
    }
    np.savez_compressed(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    found = read_inputs(tmp_path / "a.npz")
    assert found is not None
    assert {name: array.tolist() for name, array in found.items()} == {k: v.tolist() for k, v in arrays.items()}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header(f"({2**40}, 8)"), "which do not fit its shape"),
        (header("(2, 2)") + bytes(15), "which do not fit its shape"),
        (header("(-1,)"), "which do not fit its shape"),
        (header("(1,)", "|O") + b"cos\nsystem\n", "holds Python objects"),
        (header("(1, 'a')"), "shape is not valid"),
        (b"\x93NUMPY\x09\x00", "is of version"),
        (header("(1,)").replace(b"'fortran_order'", b"(fortran_order)"), "is not an"),  # what breaks off in a bracket
        (header("(1, ("), "is not an"),
        (b"text", "magic string"),
        (b"", "magic string"),
    ],
)
def test_what_is_no_array(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_inputs(written(tmp_path / "a.npz", x=content))
    assert len(str(caught.value).splitlines()) == 1


def test_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_file, "MOST", 2**20)
    file = written(tmp_path / "a.npz", x=header("(524288,)") + bytes(2**21))
    with pytest.raises(InputError, match=r"it unpacks to 2,097,\d+ bytes, at most 1,048,576 are read"):
        read_inputs(file)


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_packing_that_cannot_be_unpacked_bit_by_bit(tmp_path: Path, packing: int) -> None:
    """A quarter of a megabyte of bzip2, which numpy reads at once, can be gigabytes."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", packing) as packed:
        packed.writestr("x.npy", header("(4,)") + bytes(16))
    with pytest.raises(InputError, match=r"x\.npy is not packed by deflate"):
        read_inputs(tmp_path / "a.npz")


def test_too_many_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_file, "MOST_ARRAYS", 2)
    array = header("(0,)")
    assert len(read_inputs(written(tmp_path / "a.npz", a=array, b=array)) or ()) == 2
    with pytest.raises(InputError, match="3 arrays, at most 2 are read"):
        read_inputs(written(tmp_path / "a.npz", a=array, b=array, c=array))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04"])
def test_no_archive(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"is not an \.npz file of arrays"):
        read_inputs(tmp_path / "a.npz")


def test_an_encrypted_member(tmp_path: Path) -> None:
    content = bytearray(written(tmp_path / "a.npz", x=header("(0,)")).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 0x41  # strong encryption, which zipfile does not know
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"is not an \.npz file of arrays"):
        read_inputs(tmp_path / "a.npz")


def test_a_single_array(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    (tmp_path / "a.npy").write_bytes(stream.getvalue())
    with pytest.raises(InputError, match=r"is not an \.npz file of arrays"):
        read_inputs(tmp_path / "a.npy")


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    for read in (read_inputs, inputs_file.read_array):
        with pytest.raises(InputError, match="no does not exist"):
            read(tmp_path / "no")
