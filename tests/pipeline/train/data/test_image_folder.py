"""Photographs in folders: made up here, in the layout of ImageNet."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.data import image_files
from rigl_compress.pipeline.train.data.image_files import NORMALISE
from rigl_compress.pipeline.train.data.images import DamagedImageError, damage, decode
from rigl_compress.pipeline.train.data.load import load_dataset, outline

CLASSES = ("cat", "dog", "owl")


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    pixels = torch.randint(0, 256, (size[1] // 5, size[0] // 5, 3), dtype=torch.uint8, generator=seeded(seed))
    return Image.fromarray(pixels.numpy()).resize(size)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for split, count in (("train", 4), ("val", 2)):
        for number, name in enumerate(CLASSES):
            (tmp_path / split / name).mkdir(parents=True)
            for index in range(count):
                suffix = "png" if index == 1 else "JPEG"
                picture(10 * number + index).save(tmp_path / split / name / f"{index}.{suffix}")
    return tmp_path


def load(folder: Path, say: Any = None, **options: Any) -> Any:
    return load_dataset("image-folder", folder, say=say, options={"side": 16, **options})


def epoch(samples: Any, size: int = 3, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    xs, ys = zip(*samples.batches(size, seeded(seed)), strict=True)
    return torch.cat(xs), torch.cat(ys)


# Reading


def test_classes_are_the_folders_in_the_order_of_their_names(folder: Path) -> None:
    found = load(folder)
    assert (found.classes, found.input_shape, len(found.train), len(found.test)) == (3, (3, 16, 16), 12, 6)
    assert (
        found.source == f"image-folder: photographs in folders train/CLASS/… and val/CLASS/…, in {folder} (--data-dir)"
    )
    assert [Path(path).parent.name for path in found.train.paths[:4]] == ["cat", "dog", "owl", "cat"], "dealt out"
    x, y = next(found.test.in_order(6))
    assert y.tolist() == [0, 1, 2, 0, 1, 2]
    expected = torch.stack([decode(path, 16, None) for path in found.test.paths])
    assert torch.equal(x, NORMALISE(expected))


def test_a_held_out_end_is_balanced(folder: Path) -> None:
    held = load(folder).hold_out(3)
    assert next(held.test.in_order(9))[1].tolist() == [0, 1, 2]


def test_the_seed_decides_order_crops_and_mirroring(folder: Path) -> None:
    found = load(folder)
    (x, y), (again, _), (other, _) = epoch(found.train), epoch(found.train), epoch(found.train, seed=1)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert sorted(y.tolist()) == sorted(found.train.classes.tolist())


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_changes_nothing(folder: Path, workers: int) -> None:
    alone, helped = load(folder), load(folder, workers=workers)
    for one, other in zip(epoch(alone.train), epoch(helped.train), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(alone.test.in_order(4), helped.test.in_order(4), strict=True):
        assert torch.equal(one[0], other[0])


def test_images_of_any_kind(tmp_path: Path) -> None:
    for name, mode in (("grey.jpg", "L"), ("print.jpg", "CMYK"), ("clear.png", "RGBA"), ("few.png", "P")):
        picture(0).convert(mode).save(tmp_path / name)
        assert decode(tmp_path / name, 16, seed=3).shape == (3, 16, 16)
        assert damage(tmp_path / name) == ""


def test_the_middle_is_the_resized_and_cut_image(tmp_path: Path) -> None:
    image = picture(0, (512, 640))
    image.save(tmp_path / "a.png")
    plain = image.resize((256, 320), Image.Resampling.BILINEAR).crop((16, 48, 240, 272))
    expected = torch.from_numpy(np.array(plain)).permute(2, 0, 1).float()
    assert (decode(tmp_path / "a.png", 224, None) - expected).abs().max() <= 2


def test_every_second_crop_is_mirrored(tmp_path: Path) -> None:
    ramp = Image.linear_gradient("L").rotate(90).convert("RGB")  # bright on one side
    ramp.save(tmp_path / "a.png")
    crops = [decode(tmp_path / "a.png", 16, seed).float() for seed in range(200)]
    brighter_left = sum(bool(crop[..., :8].mean() > crop[..., 8:].mean()) for crop in crops)
    assert 70 < brighter_left < 130


def test_a_large_photograph_is_decoded_at_a_part_of_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    real = Image.Image.resize
    monkeypatch.setattr(Image.Image, "resize", lambda image, *a, **k: sizes.append(image.size) or real(image, *a, **k))
    picture(1, (800, 640)).save(tmp_path / "a.jpg", quality=95)
    picture(1, (800, 640)).save(tmp_path / "a.png")
    for seed in (None, 1, 2):
        difference = decode(tmp_path / "a.jpg", 32, seed).float() - decode(tmp_path / "a.png", 32, seed).float()
        assert difference.abs().mean() < 4
    assert set(sizes) >= {(100, 80), (800, 640)}


# What is damaged


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other(path: Path) -> None:
    path.write_text("<html>not found</html>")


def gone(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere.jpg")


SPOILERS = [(cut, "truncated"), (empty, "the file is empty"), (other, "cannot identify"), (gone, "No such file")]


@pytest.mark.parametrize(("spoil", "reason"), SPOILERS)
@pytest.mark.parametrize("name", ["train/dog/2.JPEG", "val/owl/1.png"])
def test_damage_is_fatal_with_its_path_before_the_first_step(folder: Path, name: str, spoil: Any, reason: str) -> None:
    spoil(folder / name)
    with pytest.raises(InputError, match=reason if name.endswith("JPEG") else "cannot be read") as caught:
        load(folder)
    message = str(caught.value)
    assert str(folder / name) in message
    assert message.endswith('replace it, remove it, or set data.options.damaged = "skip"')
    assert "\n" not in message


@pytest.mark.parametrize(("spoil", "reason"), SPOILERS)
def test_or_left_out_by_choice(folder: Path, spoil: Any, reason: str) -> None:
    spoil(folder / "train/dog/2.JPEG")
    said: list[str] = []
    found = load(folder, said.append, damaged="skip")
    assert len(found.train) == 11
    assert len(said) == 1
    assert said[0].startswith(f"{folder / 'train/dog/2.JPEG'} is left out: ")
    assert reason in said[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_damage_that_only_decoding_finds(folder: Path, workers: int) -> None:
    path = folder / "train/dog/2.JPEG"
    found = load(folder, workers=workers)
    cut(path)  # after the look at all files
    with pytest.raises(InputError, match="truncated"):
        epoch(found.train)
    said: list[str] = []
    found = load(folder, said.append, workers=workers, damaged="skip", check=False)
    x, y = epoch(found.train)
    assert (len(found.train), len(x), len(y)) == (12, 11, 11)
    assert said == [f"{path} is left out: image file is truncated"] or "truncated" in said[0]


def test_a_batch_of_nothing_but_damage_is_no_batch(folder: Path) -> None:
    cut(folder / "val/cat/0.JPEG")
    found = load(folder, damaged="skip", check=False)
    assert [len(y) for _, y in found.test.in_order(1)] == [1] * 5


def test_what_follows_the_end_of_a_file_is_no_damage(folder: Path) -> None:
    path = folder / "train/cat/0.JPEG"
    path.write_bytes(path.read_bytes() + bytes(500))
    assert damage(path) == ""


# Bad input


def test_layouts_that_are_not_it(folder: Path) -> None:
    (folder / "val/fox").mkdir()
    with pytest.raises(InputError, match="val/fox is of no class in train"):
        load(folder)
    (folder / "train/fox").mkdir()
    with pytest.raises(InputError, match="train/fox has no images: add"):
        load(folder)
    with pytest.raises(InputError, match="has 4 classes, imagenet has 1000: use the data set image-folder"):
        load_dataset("imagenet", folder)


def test_no_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match="has no val: add them"):
        load(tmp_path)
    (tmp_path / "val").mkdir()
    with pytest.raises(InputError, match="train has no sub-folders: expected one for each class"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": 0}, "side is 0 and workers 0, expected"),
        ({"workers": -1}, "workers -1, expected"),
        ({"damaged": "ignore"}, "data.options.damaged is 'ignore', expected one of fatal, skip"),
    ],
)
def test_bad_options(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(folder, **options)


def test_without_pillow_the_cure_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r"pip install rigl-compress\[images\]"):
        load(folder)


def test_the_outline_for_flops() -> None:
    assert outline("imagenet", {"side": 160}) == ((3, 160, 160), 1_281_167)


def test_a_decoder_gives_its_reason(tmp_path: Path) -> None:
    with pytest.raises(DamagedImageError, match="No such file"):
        decode(tmp_path / "gone.jpg", 8, None)


def test_no_more_workers_than_batches(folder: Path) -> None:
    samples = load(folder, workers=8).test
    plan = image_files._Plan(samples.paths, samples.classes, torch.arange(6), None, 3)
    assert image_files.loader(plan, samples.reading).num_workers == 2
    assert (
        image_files.loader(
            image_files._Plan(samples.paths, samples.classes, torch.arange(6), None, 6), samples.reading
        ).num_workers
        == 0
    )
