"""Wide residual networks: WRN-22-2 of the paper's CIFAR-10 experiments, and any other depth and width."""

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.convolutions import channels, conv


class PreActivationBlock(nn.Module):
    """Two 3×3 convolutions, each after normalisation and ReLU; a 1×1 shortcut where the sizes change."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, outputs, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), conv(outputs, outputs, 3)
        self.shortcut = None if inputs == outputs and stride == 1 else conv(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, outputs, H / stride, W / stride]."""
        out = torch.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        residual: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(out))))
        return residual + shortcut


class WideResNet(nn.Module):
    """A first convolution, three stages of blocks, the mean over the image, and a linear readout."""

    def __init__(self, depth: int, widths: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = conv(3, widths[0], 3)
        stages = []
        for inputs, outputs, stride in zip(widths, widths[1:], (1, 2, 2), strict=False):
            first = PreActivationBlock(inputs, outputs, stride)
            others = (PreActivationBlock(outputs, outputs, 1) for _ in range((depth - 4) // 6 - 1))
            stages.append(nn.Sequential(first, *others))
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] → [N, classes]."""
        x = torch.relu(self.bn(self.stages(self.conv1(x))))
        answers: Tensor = self.fc(x.mean((2, 3)))
        return answers


DEEPEST = 1204  # of the deepest residual network published; a file can contain any number


@register_model("wide-resnet", input_shape=(3, 32, 32), classes=10)
def wide_resnet(classes: int = 10, width: float = 1.0, depth: int = 22, factor: int = 2) -> nn.Module:
    """A wide residual network WRN-depth-factor; the depth is 6 n + 4."""
    if not 10 <= depth <= DEEPEST or (depth - 4) % 6:
        raise InputError(
            f"a wide residual network has depth {depth}, expected 6 n + 4: 10, 16, 22, 28, …, at most {DEEPEST}"
        )
    narrow, *wide = (channels(16, width), *(channels(factor * stage, width) for stage in (16, 32, 64)))
    return WideResNet(depth, (narrow, *wide), classes)  # type: ignore[arg-type]


@register_model("wrn-22-2", input_shape=(3, 32, 32), classes=10)
def wrn_22_2(classes: int = 10, width: float = 1.0) -> nn.Module:
    """WRN-22-2, the wide residual network of the paper's CIFAR-10 experiments."""
    return wide_resnet(classes, width, depth=22, factor=2)
