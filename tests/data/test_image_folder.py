"""Photographs in folders: made up here, in the layout of ImageNet."""

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rigl_compress.core.errors import InputError
from rigl_compress.data import image_files
from rigl_compress.data.image_decoding import DamagedImageError, damage, decode
from rigl_compress.data.image_files import NORMALISE
from rigl_compress.data.image_views import View
from rigl_compress.data.load_dataset import load_dataset, outline

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


def load(folder: Path, log: Any = None, **options: Any) -> Any:
    return load_dataset("image-folder", folder, log=log, options={"side": 16, **options})


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


@pytest.mark.parametrize("name", ["validation", "valid", "test"])
def test_other_names_of_the_second_split(folder: Path, name: str) -> None:
    said = list[str]()
    (folder / "val").rename(folder / name)
    assert len(load(folder, log=said.append).test) == 6
    assert said == [f"there is no {folder / 'val'}: {folder / name} is tested on"]


def test_val_goes_before_other_splits(folder: Path) -> None:
    (folder / "test/cat").mkdir(parents=True)
    picture(0).save(folder / "test/cat/0.png")
    said = list[str]()
    assert (len(load(folder, log=said.append).test), said) == (6, [])


# Bad input


def test_layouts_that_are_not_it(folder: Path) -> None:
    (folder / "val/fox").mkdir()
    with pytest.raises(InputError, match="val/fox is not a class of train"):
        load(folder)
    (folder / "train/fox").mkdir()
    with pytest.raises(InputError, match="train/fox has no images: add"):
        load(folder)
    with pytest.raises(InputError, match="has 4 classes, imagenet has 1000: use the data set image-folder"):
        load_dataset("imagenet", folder)


def test_no_classes(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match=r"has no val: add them$"):
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
    assert image_files.loader(plan, samples.reading, pinned=True).pin_memory
    assert (
        image_files.loader(
            image_files._Plan(samples.paths, samples.classes, torch.arange(6), None, 6), samples.reading
        ).num_workers
        == 0
    )


# What is seen


def test_the_usual_values_are_the_defaults(folder: Path) -> None:
    usual = {"normalize": "imagenet", "crop": "random", "scale": [0.08, 1.0], "ratio": [3 / 4, 4 / 3]}
    usual |= {"center": 0.875, "flip": 0.5, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0}
    assert torch.equal(epoch(load(folder).train)[0], epoch(load(folder, **usual).train)[0])
    assert load(folder).preprocessing == {
        **{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
        **{"side": 16, "center": 0.875},
    }


@pytest.mark.parametrize(
    ("options", "mean", "std"),
    [
        ({"normalize": "half"}, 0.5, 0.5),
        ({"normalize": "none"}, 0.0, 1.0),
        ({"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.5, 0.5]}, [0.1, 0.2, 0.3], 0.5),
    ],
)
def test_normalisation(folder: Path, options: dict[str, Any], mean: Any, std: Any) -> None:
    found = load(folder, **options)
    x, _ = next(found.test.in_order(6))
    pixels = torch.stack([decode(path, 16, None) for path in found.test.paths]) / 255
    torch.testing.assert_close(x, (pixels - torch.tensor(mean).reshape(-1, 1, 1)) / torch.tensor(std).reshape(-1, 1, 1))
    assert found.preprocessing["std"] == [std] * 3


def test_training_on_the_centre_without_changes_sees_what_testing_sees(folder: Path) -> None:
    found = load(folder, crop="center", flip=0.0, center=1.0)
    x, _ = epoch(found.train)
    seen = {image.sum().item() for image in x}
    assert seen == {image.sum().item() for batch, _ in found.train.in_order(3) for image in batch}


def test_the_share_of_the_centre(tmp_path: Path) -> None:
    image = picture(0, (64, 64))
    image.save(tmp_path / "a.png")
    whole = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    assert torch.equal(decode(tmp_path / "a.png", 64, None, View(center=1.0)), whole)
    assert torch.equal(decode(tmp_path / "a.png", 32, None, View(center=0.5)), whole[:, 16:48, 16:48])


def test_flip_is_a_probability(tmp_path: Path) -> None:
    picture(0, (32, 32)).save(tmp_path / "a.png")
    never, always = (View(crop="center", flip=share) for share in (0.0, 1.0))
    straight = decode(tmp_path / "a.png", 32, None)
    for seed in range(5):
        assert torch.equal(decode(tmp_path / "a.png", 32, seed, never), straight)
        assert torch.equal(decode(tmp_path / "a.png", 32, seed, always), straight.flip(-1))


def test_scale_and_ratio_bound_the_crops() -> None:
    view = View(scale=(0.25, 0.25), ratio=(1.0, 1.0))
    boxes = [view.box((100, 100), Random(seed)) for seed in range(50)]
    assert {(box.right - box.left, box.bottom - box.top) for box in boxes} == {(50, 50)}


def test_colours_change_within_their_bounds_and_only_in_training(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), (100, 100, 100)).save(tmp_path / "a.png")
    view = View(brightness=0.4)
    values = {int(decode(tmp_path / "a.png", 8, seed, view)[0, 0, 0]) for seed in range(100)}
    assert (60 <= min(values) < 70, 130 < max(values) <= 140) == (True, True)
    assert int(decode(tmp_path / "a.png", 8, None, view)[0, 0, 0]) == 100
    grey = decode(tmp_path / "a.png", 8, 3, View(contrast=0.4, saturation=0.4))
    assert torch.equal(grey, torch.full((3, 8, 8), 100, dtype=torch.uint8)), "of one grey nothing differs"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mean": [0.5, 0.5, 0.5]}, "has only some of mean and std, or normalize beside them"),
        (
            {"mean": [0.5] * 3, "std": [0.5] * 3, "normalize": "half"},
            "or normalize beside them: set both, or normalize",
        ),
        ({"mean": [0.5], "std": [0.5]}, "data.options.mean is .*, expected a list of 3"),
        ({"mean": [123.0, 117.0, 104.0], "std": [1.0] * 3}, "expected those of pixels / 255"),
        ({"mean": [0.5] * 3, "std": [0.0] * 3}, "three deviations above 0"),
        ({"normalize": "zero"}, "data.options.normalize is 'zero', expected one of imagenet, half, none"),
        ({"scale": [1.0, 0.5]}, r"data.options.scale is \[1.0, 0.5\], expected two shares of the area"),
        ({"ratio": [0.0, 1.0]}, "expected two ratios of width to height above 0"),
        ({"center": 1.5}, "data.options.center is 1.5, expected a share of the shorter side"),
        ({"flip": -0.1}, "expected a probability from 0 to 1"),
        ({"contrast": -1.0}, "data.options.contrast is -1.0, expected 0"),
        ({"crop": "middle"}, "expected one of random, center"),
        ({"sclae": 1}, "data set 'image-folder' has no option 'sclae': did you mean 'scale'"),
        ({"side": 2.5}, "data.options.side is 2.5, expected a whole number"),
    ],
)
def test_options_that_are_wrong(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)
