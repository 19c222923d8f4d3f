"""Parts of batches, put together, are the batches."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rigl_compress.core.random_generators import generator
from rigl_compress.data.image_batches import pad_crop_flip
from rigl_compress.data.samples import Samples, Split
from rigl_compress.data.sharded_batches import Shard, sharded_batches

IMAGES = Split(torch.arange(30 * 16).reshape(30, 1, 4, 4) % 251, torch.arange(30) % 3, augment=pad_crop_flip)


def epoch(samples: Samples, shard: Shard) -> list[tuple[Tensor, Tensor]]:
    return list(sharded_batches(samples, 7, generator(0, 1, "order"), shard))


def assert_parts_are_batches(samples: Samples, count: int, skip: int) -> None:
    parts = [epoch(samples, Shard(rank, count, skip)) for rank in range(count)]
    whole = epoch(samples, Shard())[skip:]
    assert all(len(part) == len(whole) for part in parts)
    for (x, y), *pieces in zip(whole, *parts, strict=True):
        assert torch.equal(x, torch.cat([piece[0] for piece in pieces]))
        assert torch.equal(y, torch.cat([piece[1] for piece in pieces]))


@given(count=st.integers(1, 7), skip=st.integers(0, 4))
def test_augmented_images_are_the_same_in_any_number_of_parts(count: int, skip: int) -> None:
    assert_parts_are_batches(IMAGES, count, skip)


@given(size=st.integers(1, 100), count=st.integers(1, 9))
def test_rows_cover_a_batch_evenly(size: int, count: int) -> None:
    rows = [range(size)[Shard(rank, count).rows(size)] for rank in range(count)]
    assert [row for part in rows for row in part] == list(range(size))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


@pytest.mark.parametrize(("count", "skip"), [(2, 0), (3, 2), (1, 3)])
def test_photographs_are_decoded_only_where_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, skip: int
) -> None:
    image = pytest.importorskip("PIL.Image")
    from rigl_compress.data import image_files

    paths = [str(tmp_path / f"{number}.png") for number in range(30)]
    for number, path in enumerate(paths):
        image.effect_noise((24, 20 + number), 80).convert("RGB").save(path)
    seen: list[str] = []
    decode = image_files.decode
    monkeypatch.setattr(image_files, "decode", lambda path, *rest: (seen.append(path), decode(path, *rest))[1])
    files = image_files.ImageFiles(paths, torch.arange(30) % 3, image_files.Reading(side=16), print)
    assert_parts_are_batches(files, count, skip)
    assert len(seen) == 28 + (4 - skip) * 7
