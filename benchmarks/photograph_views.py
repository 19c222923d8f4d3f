"""Photographs, and random views of them that a network and its teacher both see."""

from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Photographs:
    """Images from -1 to 1, and their classes."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, samples: Any) -> "Photographs":
        """Read all of a split."""
        parts = list(samples.in_order(50))
        return cls(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))

    def batches(self, size: int = 25) -> list[Tensor]:
        """Return the images as they are."""
        return [channels_last(each) for each in self.images.split(size)]


def channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Views:
    """Random views of photographs: a part, turned, mirrored and with other colours; then mixed with each other."""

    generator: Generator
    area: tuple[float, float] = (0.2, 1.0)
    turn: float = 0.2  # radians
    colour: float = 0.3
    mixed: float = 0.5  # the share of batches

    def __call__(self, images: Tensor, side: int) -> Tensor:
        """Return one view of each image."""
        seen = F.grid_sample(images, self._grid(len(images), side), align_corners=False, padding_mode="reflection")
        coloured = self._coloured(seen)
        return channels_last(self._mix(coloured) if self._draw(1) < self.mixed else coloured)

    def _draw(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.empty(shape).uniform_(low, high, generator=self.generator)

    def _grid(self, count: int, side: int) -> Tensor:
        area, aspect = self._draw(count, low=self.area[0], high=self.area[1]), self._draw(count, low=-1) * log(4 / 3)
        wide, high = ((area * (sign * aspect).exp()).sqrt().clamp(max=1) for sign in (1, -1))
        x, y = (self._draw(count, low=-1) * (1 - each) for each in (wide, high))
        mirror = torch.where(self._draw(count) < 0.5, -1.0, 1.0)
        angle = self._draw(count, low=-self.turn, high=self.turn)
        rows = [
            [wide * mirror * angle.cos(), -wide * angle.sin(), x],
            [high * mirror * angle.sin(), high * angle.cos(), y],
        ]
        return F.affine_grid(
            torch.stack([torch.stack(row, 1) for row in rows], 1), [count, 3, side, side], align_corners=False
        )

    def _coloured(self, images: Tensor) -> Tensor:
        """Change brightness, contrast and saturation."""
        light, contrast, saturation = self._draw(3, len(images), 1, 1, 1, low=1 - self.colour, high=1 + self.colour)
        images = (images + 1) * light
        mean = images.mean((1, 2, 3), keepdim=True)
        images = (images - mean) * contrast + mean
        grey = images.mean(1, keepdim=True)
        return ((images - grey) * saturation + grey).clamp(0, 2) - 1

    def _mix(self, images: Tensor) -> Tensor:
        """Blend each image with another, or put a square of the other into it."""
        other, side = images[torch.randperm(len(images), generator=self.generator)], images.shape[-1]
        if self._draw(1) < 0.5:
            return torch.lerp(images, other, self._draw(len(images), 1, 1, 1))
        size = int(side * float(self._draw(1)) ** 0.5)
        top, left = (self._draw(2) * (side - size + 1)).int().tolist()
        images[:, :, top : top + size, left : left + size] = other[:, :, top : top + size, left : left + size]
        return images
