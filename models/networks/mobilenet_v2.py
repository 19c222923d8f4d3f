"""MobileNet-v2: inverted residuals with linear bottlenecks."""

from collections import OrderedDict

from torch import Tensor, nn

from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.convolutions import channels, conv

# Expansion, outputs, number of blocks and first stride of each stage (Sandler et al., table 2).
STAGES = (
    *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


class InvertedResidual(nn.Module):
    """Expand by a 1×1, filter depth-wise, project by a 1×1 without activation; add the input if sizes match."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        if expansion > 1:
            layers |= {"expand": conv(inputs, wide, 1), "bn1": nn.BatchNorm2d(wide), "relu1": nn.ReLU6()}
        layers |= {"depthwise": conv(wide, wide, 3, stride, groups=wide), "bn2": nn.BatchNorm2d(wide)}
        layers |= {"relu2": nn.ReLU6(), "project": conv(wide, outputs, 1), "bn3": nn.BatchNorm2d(outputs)}
        self.layers = nn.Sequential(layers)
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] → [N, outputs, H / stride, W / stride]."""
        out: Tensor = self.layers(x)
        return x + out if self.residual else out


class MobileNetV2(nn.Module):
    """A first convolution, seven stages of inverted residuals, a last 1×1, and a linear readout."""

    def __init__(self, classes: int, width: float) -> None:
        super().__init__()
        inputs = channels(32, width)
        self.conv1, self.bn1, self.relu1 = conv(3, inputs, 3, 2), nn.BatchNorm2d(inputs), nn.ReLU6()
        blocks = []
        for expansion, outputs, depth, first_stride in STAGES:
            for block in range(depth):
                stride = 1 if block else first_stride
                blocks.append(InvertedResidual(inputs, channels(outputs, width), stride, expansion))
                inputs = channels(outputs, width)
        self.blocks = nn.Sequential(*blocks)
        last = channels(1280, width)
        self.conv2, self.bn2, self.relu2 = conv(inputs, last, 1), nn.BatchNorm2d(last), nn.ReLU6()
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] → [N, classes]."""
        x = self.blocks(self.relu1(self.bn1(self.conv1(x))))
        x = self.relu2(self.bn2(self.conv2(x)))
        answers: Tensor = self.fc(x.mean((2, 3)))
        return answers


@register_model("mobilenet-v2", input_shape=(3, 224, 224), classes=1000)
def mobilenet_v2(classes: int = 1000, width: float = 1.0) -> nn.Module:
    """MobileNet-v2: inverted residuals; every layer is scaled by the width, the last one too."""
    return MobileNetV2(classes, width)
