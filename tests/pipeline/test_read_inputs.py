"""Inputs in .npz files, sound and damaged."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.export import read_inputs


def archive(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("_", "."), content)
    return packed.getvalue()


def array(header: str | None = None) -> bytes:
    """A member of an archive, on request with another header."""
    written = io.BytesIO()
    np.save(written, np.ones(2, np.float32))
    content = written.getvalue()
    return content if header is None else content[:10] + header.ljust(118).encode() + content[128:]


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(archive(x_npy=array()))
    found = read_inputs(tmp_path / "a.npz")
    assert found is not None
    assert found["x"].tolist() == [1, 1]


def encrypted() -> bytes:
    """An archive that says of its member that it is strongly encrypted, which zipfile does not know."""
    content = bytearray(archive(x_npy=array()))
    content[content.index(b"PK\x01\x02") + 8] |= 0x41
    return bytes(content)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(archive(x_npy=array("{'descr': '<f4', (")), id="header that breaks off"),
        pytest.param(
            archive(x_npy=array("{'descr': '<f4', 'fortran_order': False, 'shape': (10**30,)}")), id="no tuple"
        ),
        pytest.param(
            archive(x_npy=array("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }")),
            id="too large",
        ),
        pytest.param(archive(x_txt=b"hello"), id="a text"),
        pytest.param(encrypted(), id="encrypted"),
        pytest.param(b"PK\x03\x04", id="cut short"),
        pytest.param(b"", id="empty"),
    ],
)
def test_what_is_not_an_archive_of_arrays_is_told_in_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "inputs.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"inputs\.npz") as error:
        read_inputs(path)
    assert "\n" not in str(error.value)
