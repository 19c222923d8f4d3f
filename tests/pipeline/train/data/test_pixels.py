import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rigl_compress.pipeline.train.data.pixels import Normalise, pad_crop_flip


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
