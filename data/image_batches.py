"""Batches of images, as bytes [N, C, H, W]: normalised and augmented on the device on which they are."""

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from torch import Tensor
from torch.nn import functional as F

from rigl_compress.core.errors import InputError


@dataclass(frozen=True)
class Normalise:
    """Bytes to float32 with mean 0 and deviation 1 in each channel; mean and deviation are of pixels / 255.

    >>> Normalise((0.5,), (0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @property
    def facts(self) -> dict[str, list[float]]:
        """Mean and deviation, for programs that feed the network."""
        return {"mean": list(self.mean), "std": list(self.deviation)}

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise a batch."""
        factor, shift = _factor_and_shift(self, images.device)
        return images.to(torch.float32).mul_(factor).add_(shift)


@lru_cache(maxsize=16)  # made once for a device: a copy to it in every step would wait for it
def _factor_and_shift(of: Normalise, device: torch.device) -> tuple[Tensor, Tensor]:
    mean, deviation = (
        torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1) for values in (of.mean, of.deviation)
    )
    return (1 / (255 * deviation)).float().to(device), (-mean / deviation).float().to(device)


def pad_crop_flip(images: Tensor, generator: torch.Generator, pad: int = 4) -> Tensor:
    """Shift each image by up to `pad` pixels in each direction, filled with black, and flip half of them.

    Random numbers are drawn on the CPU, so that the images are the same on every device.

    >>> images = torch.ones(2, 1, 8, 8, dtype=torch.uint8)
    >>> pad_crop_flip(images, torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 8, 8])
    """
    count, _, height, width = images.shape
    corner = torch.randint(0, 2 * pad + 1, (2, count, 1), generator=generator)
    mirrored = torch.randint(0, 2, (count, 1), generator=generator, dtype=torch.bool)
    rows = corner[0] + torch.arange(height)
    columns = corner[1] + torch.where(mirrored, torch.arange(width - 1, -1, -1), torch.arange(width))
    padded = F.pad(images, (pad, pad, pad, pad))
    return take(padded, rows.to(images.device), columns.to(images.device))


@dataclass(frozen=True)
class RandomAffine:
    """Rotate, scale and translate each image at random, filled with black.

    Rotated by up to `rotate` degrees, each side scaled by up to the share `scale`, translated by up to `translate`
    pixels in both directions; uniformly distributed, with bilinear interpolation. Drawn on the CPU, as above.

    >>> images = torch.rand(2, 1, 28, 28)
    >>> torch.allclose(RandomAffine(rotate=0, scale=0, translate=0)(images, torch.Generator()), images, atol=1e-4)
    True
    """

    rotate: float
    scale: float
    translate: float

    @classmethod
    def or_none(cls, rotate: float, scale: float, translate: float) -> "RandomAffine | None":
        """Return the transform, or None if all are 0."""
        for name, value in (("rotate", rotate), ("scale", scale), ("translate", translate)):
            if not 0 <= value < inf:
                raise InputError(f"data.options.{name} is {value}, expected 0 (unchanged images) or more")
        return cls(rotate, scale, translate) if rotate or scale or translate else None

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Transform each image of a batch [N, C, H, W] of floats."""
        drawn = torch.rand(5, len(images), generator=generator) * 2 - 1
        grid = self._read_at(drawn, images.shape[-2], images.shape[-1]).to(images.device)
        return F.grid_sample(images, grid, align_corners=False)

    def _read_at(self, drawn: Tensor, height: int, width: int) -> Tensor:
        """Return the source of each pixel, [N, H, W, 2], in the coordinates of `grid_sample`: x, y from -1 to 1."""
        angle = drawn[0] * (self.rotate * torch.pi / 180)
        wide, high = 1 + self.scale * drawn[1], 1 + self.scale * drawn[2]
        right, down = self.translate * 2 / width * drawn[3], self.translate * 2 / height * drawn[4]
        cos, sin = angle.cos(), angle.sin()
        # One product of all matrices with all pixels; `affine_grid` has one per image, which is slower.
        matrices = torch.stack([cos * wide, -sin * high * (height / width), right,
                                sin * wide * (width / height), cos * high, down], dim=1)  # fmt: skip
        grid = matrices.reshape(-1, 3) @ _pixels(height, width)
        return grid.reshape(-1, 2, height, width).permute(0, 2, 3, 1)


@lru_cache(maxsize=4)
def _pixels(height: int, width: int) -> Tensor:
    """Return x, y and 1 of every pixel's centre, [3, H * W]."""
    rows, columns = ((torch.arange(size) * 2 + 1) / size - 1 for size in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)]).flatten(1)


def take(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows [N, h] and columns [N, w] of images [N, C, H, W], different ones for each image.

    >>> take(torch.arange(4).reshape(1, 1, 2, 2), torch.tensor([[1, 0]]), torch.tensor([[0, 0]])).tolist()
    [[[[2, 2], [0, 0]]]]
    """
    count, channels, _, width = images.shape
    indices = (rows[:, :, None] * width + columns[:, None, :]).reshape(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, indices).reshape(count, channels, rows.shape[1], columns.shape[1])
