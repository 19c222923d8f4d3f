"""Dense convolutions between sparse ones, on the same kernels: their layout costs less than its conversion."""

from functools import lru_cache
from math import prod
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.innermost_layout import InnermostModule, channels_first
from rigl_compress.models.sparse_modules import Wiring, batch_innermost, layer_shape, product_of
from rigl_compress.models.training_kernels import LayerShape

# Multiply-adds of an output pixel by which torch is faster, for each channel of input and output that it converts
# (benchmarks/sparse_training.py --rows wrn).
_PER_CHANNEL = 160


class InnermostConv2d(InnermostModule, nn.Conv2d):
    """A dense convolution that keeps the layout of sparse ones."""

    plain_type = nn.Conv2d

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution."""
        plain = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
        if plain or input.dim() != 4 or input.dtype != torch.float32 or input.shape[1] != self.in_channels:
            return super().forward(input)
        shape = layer_shape(self)
        if min(shape.output((input.shape[2], input.shape[3]))) < 1:
            return super().forward(input)
        wiring = _full(self.weight.shape, shape)
        values = self.weight.flatten().index_select(0, wiring.places)
        owner, batch = SimpleNamespace(wiring=wiring, recording=False), len(input)
        rows = batch_innermost(input.reshape(batch, -1)).view(*input.shape[1:], batch)
        return channels_first(product_of(rows, values, self.bias, owner))


@lru_cache(maxsize=64)
def _full(shape: torch.Size, layer: LayerShape) -> Wiring:
    """Return the wiring of all connections."""
    return Wiring(shape, layer, torch.arange(prod(shape)))


def is_cheap(module: nn.Module) -> bool:
    """Whether a dense convolution is so small that converting its images would cost more than torch gains.

    >>> is_cheap(nn.Conv2d(3, 16, 3)), is_cheap(nn.Conv2d(32, 64, 1, 2)), is_cheap(nn.Conv2d(256, 256, 3))
    (True, True, False)
    """
    if type(module) is not nn.Conv2d or module.padding_mode != "zeros" or module.weight.device.type != "cpu":
        return False
    try:
        shape = layer_shape(module)
    except InputError:
        return False
    return prod(module.weight.shape) <= _PER_CHANNEL * (shape.inputs * prod(shape.stride) + shape.outputs)
