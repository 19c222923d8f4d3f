"""Images in folders of Hugging Face datasets."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, Image, disable_progress_bars
from PIL.Image import Image as Picture
from tiny_huggingface import picture

from rigl_compress.core.errors import InputError
from rigl_compress.data import huggingface_tables
from rigl_compress.data.huggingface_images import Rows
from rigl_compress.data.image_decoding import DamagedImageError
from rigl_compress.data.load_dataset import load_dataset


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    disable_progress_bars()
    monkeypatch.setattr(huggingface_tables, "cache_folder", lambda: tmp_path / "cache")


def rows(count: int) -> Dataset:
    table = {"image": [picture(n) for n in range(count)], "label": [n % 3 for n in range(count)]}
    return Dataset.from_dict(table).cast_column("image", Image())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    DatasetDict(train=rows(12), test=rows(6)).save_to_disk(tmp_path / "pictures")
    return tmp_path / "pictures"


def load(folder: Path, **options: Any) -> Any:
    return load_dataset("hf-images", folder, options={"side": 8, "normalize": "none", **options})


def test_images_are_decoded_when_they_are_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    real = Picture.load
    monkeypatch.setattr(Picture, "load", lambda image: decoded.append(1) or real(image))
    found = load(folder)
    assert (found.classes, found.input_shape, len(found.train), len(found.test)) == (3, (3, 8, 8), 12, 6)
    assert not decoded
    x, y = next(found.test.in_order(3))
    assert y.tolist() == [0, 1, 2]
    assert x.amax(dim=(2, 3)).argmax(dim=1).tolist() == [0, 1, 2], "the colour is the class"


def epoch(folder: Path, **options: Any) -> torch.Tensor:
    return torch.cat([x for x, _ in load(folder, **options).train.batches(4, torch.Generator().manual_seed(1))])


def test_the_seed_decides(folder: Path) -> None:
    assert torch.equal(epoch(folder), epoch(folder))


@pytest.mark.slow
def test_workers_change_nothing(folder: Path) -> None:
    assert torch.equal(epoch(folder), epoch(folder, workers=1))


def test_parquet(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    rows(6).to_parquet(tmp_path / "files" / "train.parquet")
    rows(3).to_parquet(tmp_path / "files" / "validation.parquet")
    found = load(tmp_path / "files")
    assert (len(found.train), len(found.test)) == (6, 3)
    assert next(found.test.in_order(3))[0].shape == (3, 3, 8, 8)


def test_a_path_in_the_place_of_an_image_is_not_followed() -> None:
    with pytest.raises(DamagedImageError, match="a path instead of the image"):
        Rows([{"image": {"bytes": None, "path": "/etc/hostname"}}], "image")("row 0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"image": "img"}, "no column 'img': did you mean 'image'"),
        ({"image": "label"}, r"the column 'label' \(data.options.image\) holds .*, expected images"),
        ({"label": "image"}, r"the column 'image' \(data.options.label\) holds"),
        ({"flip": 2.0}, "data.options.flip is 2.0, expected a probability from 0 to 1"),
    ],
)
def test_bad_input(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)
