"""Photographs in tar shards: the same in any number of processes, and clear errors for damaged shards."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rigl_compress.core.errors import InputError
from rigl_compress.data import tar_shards
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.data.sharded_batches import Shard


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


def write(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def samples(first: int, count: int) -> dict[str, bytes]:
    return {
        name: content
        for number in range(first, first + count)
        for name, content in ((f"{number:04}.png", png(number)), (f"{number:04}.cls", str(number % 3).encode()))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in range(3):
        write(tmp_path / "train" / f"part-{shard}.tar", samples(4 * shard, 4))
    write(tmp_path / "val" / "part-0.tar", samples(100, 6))
    return tmp_path


def load(folder: Path, **options: Any) -> Any:
    return load_dataset("image-shards", folder, options={"side": 16, **options})


def batches(data: Any, shard: Shard | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(data.train.sharded(4, torch.Generator().manual_seed(0), shard or Shard()))


def test_images_and_classes_are_those_in_the_shards(folder: Path) -> None:
    data = load(folder, normalize="none", center=1.0, crop="center", flip=0.0)
    assert (data.classes, len(data.train), len(data.test)) == (3, 12, 6)
    assert next(data.test.in_order(6))[1].tolist() == [number % 3 for number in range(100, 106)]
    assert tar_shards.open_image(data.train.paths[5]).read() == png(5)


def test_workers_read_what_one_process_reads(folder: Path) -> None:
    for (x, y), (z, w) in zip(batches(load(folder)), batches(load(folder, workers=2)), strict=True):
        assert torch.equal(x, z)
        assert torch.equal(y, w)


def test_an_epoch_goes_on_where_it_was_left_and_is_divided_among_processes(folder: Path) -> None:
    data = load(folder)
    whole = batches(data)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(whole[1:], batches(data, Shard(skip=1)), strict=True))
    parts = [batches(data, Shard(rank, 2)) for rank in (0, 1)]
    for (x, _), (one, _), (other, _) in zip(whole, *parts, strict=True):
        assert torch.equal(x, torch.cat([one, other]))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def overwrite_header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    with tarfile.open(path) as tar:
        at = tar.getmembers()[4].offset
    content[at : at + 512] = b"x" * 512
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: cut(path, 3000), "part-1.tar is no whole tar archive"),
        (lambda path: cut(path, 512 * 2), "part-1.tar is no whole tar archive"),
        (overwrite_header, "part-1.tar is no whole tar archive .damaged or cut short at byte"),
        (lambda path: path.write_bytes(b""), "part-1.tar is no whole tar archive"),
        (lambda path: path.write_bytes(gzip.compress(path.read_bytes())), "again, uncompressed"),
        (lambda path: write(path, {"1.png": png(1)}), "'1' has only an image or only a class"),
        (lambda path: write(path, {"1.png": png(1), "1.cls": b"cat"}), "1.cls has 'cat', expected the number"),
        (lambda path: write(path, {"1.png": png(1), "1.cls": b"1" * 40}), "expected the number of a class"),
        (lambda path: write(path, {"1.png": png(1), "1.jpg": png(1), "1.cls": b"1"}), "'1' has two images"),
        (lambda path: write(path, {"1.txt": b"1"}), "part-1.tar has no images"),
    ],
)
def test_a_damaged_shard_is_named(folder: Path, damage: Any, words: str) -> None:
    damage(folder / "train" / "part-1.tar")
    with pytest.raises(InputError, match=words):
        load(folder)


@pytest.mark.parametrize("limit", ["MOST_ENTRIES", "MOST_BYTES", "MOST_AT_ONCE"])
def test_limits(folder: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(tar_shards, limit, 3)
    with pytest.raises(InputError, match=r"more than|at most"):
        load(folder)


def test_a_damaged_image_is_named_with_its_shard(folder: Path) -> None:
    write(folder / "train" / "part-1.tar", {"7.png": b"no image", "7.cls": b"1"} | samples(4, 3))
    with pytest.raises(InputError, match=r"part-1\.tar, 7\.png, bytes \d+\+8 cannot be read"):
        batches(load(folder))


def test_a_shard_that_shrinks_during_training_is_named(folder: Path) -> None:
    data = load(folder)
    cut(folder / "train" / "part-2.tar", 2000)
    with pytest.raises(InputError, match="cut short"):
        batches(data)


def test_a_folder_without_shards(folder: Path) -> None:
    (folder / "val" / "part-0.tar").unlink()
    with pytest.raises(InputError, match=r"val has no \.tar files"):
        load(folder)
