"""What the families of convolutional networks have in common."""

from torch import nn


def channels(count: int, width: float) -> int:
    """Scale a number of channels, rounding down as the paper's authors count, never to nothing.

    >>> channels(64, 1.98), channels(32, 0.001)
    (126, 1)
    """
    return max(1, int(count * width))


def conv(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Give a convolution that keeps the image's size (at stride 1), without a bias: normalisation follows it.

    >>> conv(3, 8, 3).padding, conv(3, 8, 1).padding
    ((1, 1), (0, 0))
    """
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer
