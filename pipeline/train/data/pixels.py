"""Batches of images, as bytes [N, C, H, W]: normalised and augmented on the device on which they are."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F


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


def take(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Take rows [N, h] and columns [N, w] of images [N, C, H, W], for each image its own, of all its channels.

    >>> take(torch.arange(4).reshape(1, 1, 2, 2), torch.tensor([[1, 0]]), torch.tensor([[0, 0]])).tolist()
    [[[[2, 2], [0, 0]]]]
    """
    count, channels, _, width = images.shape
    places = (rows[:, :, None] * width + columns[:, None, :]).reshape(count, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, places).reshape(count, channels, rows.shape[1], columns.shape[1])
