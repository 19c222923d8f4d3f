import gzip
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.data.idx_format import format_idx, parse_idx, read_idx, write_idx

shapes = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@settings(deadline=None)  # a shared machine stalls now and then
@given(shapes, st.integers(0, 2**32 - 1))
def test_what_is_written_is_read(shape: list[int], seed: int) -> None:
    values = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(parse_idx(format_idx(values), Path("x")), values)


@settings(deadline=None)  # a shared machine stalls now and then
@given(shapes, st.integers(1, 40))
def test_every_cut_of_the_end_is_seen(shape: list[int], cut: int) -> None:
    content = format_idx(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(InputError, match="x is damaged"):
        parse_idx(content[:-cut], Path("x"))


def test_the_header_is_that_of_mnist() -> None:
    # The first 16 bytes of MNIST's t10k-images-idx3-ubyte.
    content = format_idx(torch.zeros(10_000, 28, 28, dtype=torch.uint8))
    assert content[:16].hex() == "00000803000027100000001c0000001c"
    assert len(content) == 7_840_016


@pytest.mark.parametrize("name", ["plain", "packed.gz"])
def test_files_plain_and_gzipped(tmp_path: Path, name: str) -> None:
    values = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    write_idx(tmp_path / name, values)
    assert torch.equal(read_idx(tmp_path / name, ndim=2), values)
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_a_transposed_tensor_is_written_by_its_values(tmp_path: Path) -> None:
    values = torch.arange(6, dtype=torch.uint8).reshape(2, 3).T
    assert parse_idx(format_idx(values), tmp_path).tolist() == values.tolist()


def test_same_values_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path / "a.gz", torch.zeros(9, dtype=torch.uint8))
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_idx(tmp_path / "b.gz", torch.zeros(9, dtype=torch.uint8))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


good = format_idx(torch.zeros(2, 3, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("short", good[:-1], "17 bytes, expected 18 bytes"),
        ("long", good + b"x", "more than 18 bytes, expected 18 bytes at most"),
        ("header", good[:6], "6 bytes, expected a header of 12 bytes"),
        ("empty", b"", "starts with nothing, expected idx"),
        ("html", b"<html>404</html>", "starts with 3c68746d, expected idx"),
        ("floats", bytes([0, 0, 0x0D]) + good[3:], "starts with 00000d02, expected idx"),
        ("rankless", bytes([0, 0, 8, 0]), "starts with 00000800, expected idx"),
        ("wrong-rank", format_idx(torch.zeros(3, dtype=torch.uint8)), "1 dimensions, expected 2"),
        ("no-gzip.gz", good, "starts with 0000, expected gzip"),
        ("cut.gz", gzip.compress(good, mtime=0)[:-9], "gzip breaks off"),
        ("flipped.gz", gzip.compress(good, mtime=0)[:-8] + b"12345678", "gzip breaks off"),
        ("garbage.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff\xff", "gzip breaks off"),
    ],
)
def test_damage_is_one_sentence_with_file_and_cure(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_idx(tmp_path / name, ndim=2)
    message = str(caught.value)
    assert str(tmp_path / name) in message
    assert words in message
    assert "rigl-compress data fetch" in message
    assert "\n" not in message


def test_only_bytes_are_written() -> None:
    with pytest.raises(InputError, match=r"found torch\.float32 of 1"):
        format_idx(torch.zeros(3))
