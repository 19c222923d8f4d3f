"""Batches of images, as bytes [N, C, H, W]: normalised and augmented on the device on which they are."""

from dataclasses import dataclass
from functools import lru_cache
from math import inf

import torch
from torch import Tensor
from torch.nn import functional as F

from rigl_compress.models.errors import InputError


@dataclass(frozen=True)
class Normalise:
    """Bytes to float32 with mean 0 and deviation 1 in each channel; mean and deviation are of pixels / 255.

    >>> Normalise((0.5,), (0.25,))(torch.tensor([[[[0, 255]]]], dtype=torch.uint8)).tolist()
    [[[[-2.0, 2.0]]]]
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

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
    """Move each image by up to `pad` pixels in each direction, black coming in, and mirror every second one.

    The random numbers are drawn on the CPU: the same images come out on every device.

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
class Jiggle:
    """Turn, stretch and move each image by a little, at random, black coming in: digits as other hands write them.

    Turned by up to `turn` degrees, each side stretched or pressed by up to the share `stretch`, moved by up to `move`
    pixels in both directions; evenly distributed, read between the pixels. Numbers are drawn on the CPU, as above.

    >>> images = torch.rand(2, 1, 28, 28)
    >>> torch.allclose(Jiggle(turn=0, stretch=0, move=0)(images, torch.Generator()), images, atol=1e-6)
    True
    """

    turn: float
    stretch: float
    move: float

    @classmethod
    def asked(cls, turn: float, stretch: float, move: float) -> "Jiggle | None":
        """What a recipe asks for: nothing if all are 0."""
        for name, value in (("turn", turn), ("stretch", stretch), ("move", move)):
            if not 0 <= value < inf:
                raise InputError(f"data.options.{name} is {value}: choose 0, to leave images as they are, or more")
        return cls(turn, stretch, move) if turn or stretch or move else None

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change each image of a batch [N, C, H, W] of floats in its own way."""
        drawn = torch.rand(5, len(images), generator=generator) * 2 - 1
        places = self._read_at(drawn, images.shape[-2], images.shape[-1]).to(images.device)
        return F.grid_sample(images, places, align_corners=False)

    def _read_at(self, drawn: Tensor, height: int, width: int) -> Tensor:
        """Where each pixel comes from, [N, H, W, 2], in the coordinates of `grid_sample`: x, y, both from -1 to 1."""
        angle = drawn[0] * (self.turn * torch.pi / 180)
        wide, high = 1 + self.stretch * drawn[1], 1 + self.stretch * drawn[2]
        right, down = self.move * 2 / width * drawn[3], self.move * 2 / height * drawn[4]
        cos, sin = angle.cos(), angle.sin()
        # One multiplication of all matrices with all pixels; `affine_grid` makes one for each image, which is slower.
        matrices = torch.stack([cos * wide, -sin * high * (height / width), right,
                                sin * wide * (width / height), cos * high, down], dim=1)  # fmt: skip
        places = matrices.reshape(-1, 3) @ _pixels(height, width)
        return places.reshape(-1, 2, height, width).permute(0, 2, 3, 1)


@lru_cache(maxsize=4)
def _pixels(height: int, width: int) -> Tensor:
    """x, y and 1 of every pixel's centre, [3, H * W]."""
    rows, columns = ((torch.arange(size) * 2 + 1) / size - 1 for size in (height, width))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)]).flatten(1)


def take(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Take rows [N, h] and columns [N, w] of images [N, C, H, W], for each image its own, of all its channels.

    >>> take(torch.arange(4).reshape(1, 1, 2, 2), torch.tensor([[1, 0]]), torch.tensor([[0, 0]])).tolist()
    [[[[2, 2], [0, 0]]]]
    """
    count, channels, _, width = images.shape
    places = (rows[:, :, None] * width + columns[:, None, :]).reshape(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, places).reshape(count, channels, rows.shape[1], columns.shape[1])
