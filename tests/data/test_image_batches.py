from math import cos, floor, radians, sin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.data.image_batches import Normalise, RandomAffine, pad_crop_flip


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int = 6, side: int = 8) -> Tensor:
    return torch.randint(1, 256, (count, 3, side, side), dtype=torch.uint8, generator=seeded(9))


def every_version(image: Tensor, pad: int) -> set[bytes]:
    """All that may come of an image [C, H, W], made with slices: the slow and plain way."""
    side = image.shape[-1]
    padded = torch.zeros(3, side + 2 * pad, side + 2 * pad, dtype=torch.uint8)
    padded[:, pad : pad + side, pad : pad + side] = image
    corners = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    crops = [padded[:, top : top + side, left : left + side] for top, left in corners]
    return {bytes(one.contiguous().numpy()) for crop in crops for one in (crop, crop.flip(-1))}


@settings(max_examples=20)
@given(st.integers(0, 2**40), st.integers(1, 3))
def test_each_image_is_moved_and_mirrored_and_nothing_else(seed: int, pad: int) -> None:
    images = pictures()
    for image, out in zip(images, pad_crop_flip(images, seeded(seed), pad), strict=True):
        assert bytes(out.contiguous().numpy()) in every_version(image, pad)


def test_all_versions_come_up_and_each_image_has_its_own() -> None:
    image = pictures(1)
    out = pad_crop_flip(image.expand(2000, -1, -1, -1), seeded(0), pad=1)
    assert {bytes(one.contiguous().numpy()) for one in out} == every_version(image[0], 1)


def test_the_seed_decides() -> None:
    images = pictures()
    one, again, other = (pad_crop_flip(images, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_images_need_not_be_square() -> None:
    assert pad_crop_flip(torch.ones(3, 1, 5, 9, dtype=torch.uint8), seeded(0)).shape == (3, 1, 5, 9)


def test_normalised_pixels_have_the_mean_and_deviation_that_was_taken_out() -> None:
    images = pictures(200)
    pixels = images.double() / 255
    mean, deviation = pixels.mean(dim=(0, 2, 3)), pixels.std(dim=(0, 2, 3))
    out = Normalise(tuple(mean.tolist()), tuple(deviation.tolist()))(images)
    assert out.dtype == torch.float32
    expected = (pixels - mean[:, None, None]) / deviation[:, None, None]
    torch.testing.assert_close(out, expected.float(), rtol=1e-5, atol=1e-5)
    assert out.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-4)


def test_everything_happens_on_the_device_of_the_images() -> None:
    images = torch.zeros(4, 3, 8, 8, dtype=torch.uint8, device="meta")
    out = Normalise((0.5,) * 3, (0.2,) * 3)(pad_crop_flip(images, seeded(0)))
    assert (out.device.type, tuple(out.shape)) == ("meta", (4, 3, 8, 8))


# Turned, stretched and moved


def between(image: Tensor, x: float, y: float) -> float:
    """The value of an image [H, W] at a point between its pixels, black around it: one pixel at a time."""
    left, top = floor(x), floor(y)
    total = 0.0
    for column, row in ((left, top), (left + 1, top), (left, top + 1), (left + 1, top + 1)):
        if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
            total += float(image[row, column]) * (1 - abs(x - column)) * (1 - abs(y - row))
    return total


def by_hand(image: Tensor, drawn: list[float], by: RandomAffine) -> Tensor:
    """An image [H, W] turned, stretched and moved in plain arithmetic of pixels."""
    angle, wide, high = radians(by.rotate * drawn[0]), 1 + by.scale * drawn[1], 1 + by.scale * drawn[2]
    rows, columns = image.shape
    middle_x, middle_y = (columns - 1) / 2, (rows - 1) / 2
    out = torch.zeros(rows, columns)
    for row in range(rows):
        for column in range(columns):
            x, y = (column - middle_x) * wide, (row - middle_y) * high
            from_x = cos(angle) * (column - middle_x) * wide - sin(angle) * y + middle_x + by.translate * drawn[3]
            from_y = sin(angle) * x + cos(angle) * y + middle_y + by.translate * drawn[4]
            out[row, column] = between(image, from_x, from_y)
    return out


@settings(max_examples=20)
@given(
    st.integers(0, 2**40),
    st.sampled_from([(7, 7), (5, 9)]),
    st.sampled_from([(30.0, 0, 0), (0, 0.3, 0), (20, 0.2, 1.5)]),
)
def test_jiggled_as_by_hand(seed: int, size: tuple[int, int], by: tuple[float, float, float]) -> None:
    images = torch.rand(3, 1, *size, generator=seeded(9))
    jiggle = RandomAffine(*by)
    drawn = (torch.rand(5, 3, generator=seeded(seed)) * 2 - 1).T.tolist()
    expected = torch.stack([by_hand(image[0], one, jiggle) for image, one in zip(images, drawn, strict=True)])
    torch.testing.assert_close(jiggle(images, seeded(seed))[:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_jiggle_moves_no_further_than_it_says_and_as_far() -> None:
    dots = torch.zeros(2000, 1, 15, 15)
    dots[:, :, 7, 7] = 1
    out = RandomAffine(rotate=0, scale=0, translate=2)(dots, seeded(0))[:, 0]
    away = (out.sum(dim=1) * torch.arange(-7, 8)).sum(dim=1)
    assert 1.99 < float(away.max()) <= 2.0001
    assert -2.0001 <= float(away.min()) < -1.99
    assert float(away.mean()) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("option", ["rotate", "scale", "translate"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_jiggle_of_no_meaning_is_refused(option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"data.options.{option} is {value}"):
        RandomAffine.or_none(**{"rotate": 0.0, "scale": 0.0, "translate": 0.0, option: value})


def test_a_jiggle_happens_on_the_device_of_the_images() -> None:
    out = RandomAffine(5, 0.1, 1)(torch.zeros(4, 1, 8, 8, device="meta"), seeded(0))
    assert (out.device.type, tuple(out.shape)) == ("meta", (4, 1, 8, 8))
