"""Layers between sparse convolutions that keep their layout: batch normalization, pooling, dense convolutions."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rigl_compress.models.innermost_convolution import InnermostConv2d, is_cheap
from rigl_compress.models.innermost_layout import InnermostModule, is_innermost
from rigl_compress.models.innermost_norm import InnermostBatchNorm2d


class _Pool(InnermostModule):
    """A pool of images with the batch innermost: torch sees the batch as channels, innermost in memory."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the pooled images."""
        if torch.compiler.is_compiling() or not is_innermost(input):
            return super().forward(input)  # type: ignore[no-any-return]
        return super().forward(input.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]


class InnermostMaxPool2d(_Pool, nn.MaxPool2d):
    """A maximum pool that keeps the layout of its input."""

    plain_type = nn.MaxPool2d


class InnermostAvgPool2d(_Pool, nn.AvgPool2d):
    """An average pool that keeps the layout of its input."""

    plain_type = nn.AvgPool2d


class InnermostAdaptiveAvgPool2d(_Pool, nn.AdaptiveAvgPool2d):
    """An average pool of a given output size that keeps the layout of its input."""

    plain_type = nn.AdaptiveAvgPool2d


_INNERMOST: dict[type[nn.Module], type[InnermostModule]] = {
    own.plain_type: own
    for own in (InnermostBatchNorm2d, InnermostMaxPool2d, InnermostAvgPool2d, InnermostAdaptiveAvgPool2d)
}


def keep_layout(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Let layers keep the layout of sparse convolutions, in place; return those that do now."""
    kinds = {
        module: _INNERMOST.get(type(module)) or (InnermostConv2d if is_cheap(module) else None) for module in modules
    }
    found = {module: kind for module, kind in kinds.items() if kind is not None}
    for module, kind in found.items():
        module.__class__ = kind
    return [*found]
