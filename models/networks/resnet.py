"""Residual networks: ResNet-50 (v1.5) of the paper's ImageNet tables, and small ones of basic blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.convolutions import channels, conv

Block = Callable[[int, int, int], nn.Module]  # inputs, width, stride


class Shortcut(nn.Sequential):
    """The shortcut around a block: a 1×1 convolution if the sizes change, else the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        same = inputs == outputs and stride == 1
        super().__init__(*([] if same else [conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)]))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3), nn.BatchNorm2d(width)
        self.shortcut = Shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, width, H / stride, W / stride]."""
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 four times as wide. The stride is in the 3×3: that is v1.5."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1, self.bn1 = conv(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = conv(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.shortcut = Shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, 4 · width, H / stride, W / stride]."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        return torch.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


@dataclass(frozen=True)
class Design:
    """Blocks, their number and width stage by stage, and whether the images are large."""

    block: type[BasicBlock] | type[Bottleneck]
    depths: Sequence[int]
    widths: Sequence[int]
    large_images: bool


class ResNet(nn.Module):
    """A first convolution, stages of residual blocks, the mean over the image, and a linear readout."""

    def __init__(self, design: Design, classes: int, width: float) -> None:
        super().__init__()
        inputs = channels(design.widths[0], width)
        self.conv1 = conv(3, inputs, 7, 2) if design.large_images else conv(3, inputs, 3)
        self.bn1 = nn.BatchNorm2d(inputs)
        self.pool = nn.MaxPool2d(3, 2, padding=1) if design.large_images else nn.Identity()
        stages = []
        for number, (depth, wide) in enumerate(zip(design.depths, design.widths, strict=True)):
            blocks = []
            for block in range(depth):
                stride = 2 if number and not block else 1
                blocks.append(design.block(inputs, channels(wide, width), stride))
                inputs = design.block.expansion * channels(wide, width)
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] → [N, classes]."""
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        answers: Tensor = self.fc(self.stages(x).mean((2, 3)))
        return answers


@register_model("resnet-50", input_shape=(3, 224, 224), classes=1000)
def resnet_50(classes: int = 1000, width: float = 1.0) -> nn.Module:
    """ResNet-50 (v1.5, stride in the 3×3) of the paper's ImageNet tables."""
    return ResNet(Design(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), large_images=True), classes, width)


@register_model("resnet-18", input_shape=(3, 224, 224), classes=1000)
def resnet_18(classes: int = 1000, width: float = 1.0) -> nn.Module:
    """ResNet-18: basic blocks, for images of ImageNet's size."""
    return ResNet(Design(BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), large_images=True), classes, width)


@register_model("resnet-20", input_shape=(3, 32, 32), classes=10)
def resnet_20(classes: int = 10, width: float = 1.0) -> nn.Module:
    """ResNet-20: basic blocks, for images of CIFAR's size; 1×1 convolutions where the width changes."""
    return ResNet(Design(BasicBlock, (3, 3, 3), (16, 32, 64), large_images=False), classes, width)
