"""A network of the shape of ResNet-50 (v1.5): bottlenecks 3-4-6-3 with batch normalisation."""

from torch import Tensor, nn


def conv_bn(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 four times as wide, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(*conv_bn(inputs, width, 1), nn.ReLU(inplace=True)),
            *(*conv_bn(width, width, 3, stride), nn.ReLU(inplace=True)),
            *conv_bn(width, 4 * width, 1),
        )
        same = inputs == 4 * width and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_bn(inputs, 4 * width, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.layers(x)
        out += self.shortcut(x)
        result: Tensor = self.relu(out)
        return result


def resnet50(classes: int = 1000) -> nn.Sequential:
    """25.6 million parameters."""
    blocks: list[nn.Module] = []
    inputs = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        for number in range(depth):
            blocks.append(Bottleneck(inputs, 64 * 2**stage, 2 if stage and not number else 1))
            inputs = 256 * 2**stage
    return nn.Sequential(
        *(*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1), *blocks),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)),
    )
