"""A network of the shape of ResNet-50: 25.6 million parameters. Several benchmarks measure with it."""

from torch import Tensor, nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """The block of ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        same = inputs == 4 * width
        project = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))
        self.skip: nn.Module = nn.Identity() if same else project

    def forward(self, x: Tensor) -> Tensor:
        """Add the block to its input."""
        return F.relu(self.body(x) + self.skip(x))


def resnet50() -> nn.Module:
    """Bottlenecks 3-4-6-3, strides in the 3×3 convolutions, batch normalisation, 1,000 classes."""
    blocks, inputs = [], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            blocks.append(Bottleneck(inputs, 64 * 2**stage, 2 if stage and not block else 1))
            inputs = 4 * 64 * 2**stage
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
