"""Building blocks that the convolutional networks share."""

from torch import nn


def channels(count: int, width: float) -> int:
    """Scale a number of channels to at least 1, rounding down as the paper's authors do.

    >>> channels(64, 1.98), channels(32, 0.001)
    (126, 1)
    """
    return max(1, int(count * width))


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Return a convolution without bias, for a normalisation to follow, that keeps the image size at stride 1.

    >>> conv(3, 8, 3).padding, conv(3, 8, 1).padding
    ((1, 1), (0, 0))
    """
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
