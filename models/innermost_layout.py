"""Images with the batch innermost in memory: [batch, channels, height, width] with the strides of [C, H, W, N].

Sparse convolutions compute in this layout and return it. Elementwise operations of torch keep it.
"""

from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn

from rigl_compress.models.training_kernels import transposed


def is_innermost(images: Tensor) -> bool:
    """Whether images have the batch innermost.

    >>> is_innermost(torch.empty(3, 4, 5, 8).permute(3, 0, 1, 2)), is_innermost(torch.empty(8, 3, 4, 5))
    (True, False)
    """
    return images.dim() == 4 and images.device.type == "cpu" and images.permute(1, 2, 3, 0).is_contiguous()


def channels_first(rows: Tensor) -> Tensor:
    """Return [channels, height, width, batch] as [batch, channels, height, width], without a copy."""
    return rows.permute(3, 0, 1, 2)


def rows_of(images: Tensor) -> Tensor:
    """Return [batch, channels, height, width] as contiguous [channels, height, width, batch]."""
    return contiguous_rows(images.permute(1, 2, 3, 0))


def contiguous_rows(rows: Tensor) -> Tensor:
    """Return [channels, height, width, batch] as contiguous memory, by a faster copy than torch's where it can be."""
    if rows.is_contiguous():
        return rows
    images = rows.permute(3, 0, 1, 2)
    if images.is_contiguous() and images.dtype == torch.float32:
        return transposed(images.reshape(len(images), -1)).view(rows.shape)
    return rows.contiguous()


def batch_first(rows: Tensor) -> Tensor:
    """Return contiguous [channels, height, width, batch] as contiguous [batch, channels, height, width]."""
    return transposed(rows.view(-1, rows.shape[3])).view(rows.shape[3], *rows.shape[:3])


class InnermostModule(nn.Module):
    """A layer that keeps this layout, made in place of a plain one; images of other layouts are computed as by that."""

    plain_type: ClassVar[type[nn.Module]]


def forget_layout(modules: Iterable[nn.Module]) -> None:
    """Turn layers that keep the layout into the plain ones that they were, in place."""
    for module in modules:
        if isinstance(module, InnermostModule):
            module.__class__ = module.plain_type  # type: ignore[assignment]
