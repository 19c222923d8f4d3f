"""MobileNet-v1: depth-wise separable convolutions, dense and wide in the paper's ImageNet tables."""

from collections import OrderedDict

from torch import Tensor, nn

from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.convolutions import channels, conv

# Outputs and stride of each separable convolution.
STAGES = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Return a depth-wise 3×3 convolution, then a 1×1 that mixes the channels.

    >>> [name for name, _ in separable(8, 16, 1).named_children()]
    ['depthwise', 'bn1', 'relu1', 'pointwise', 'bn2', 'relu2']
    """
    return nn.Sequential(
        OrderedDict(
            depthwise=conv(inputs, inputs, 3, stride, groups=inputs),
            bn1=nn.BatchNorm2d(inputs),
            relu1=nn.ReLU6(),
            pointwise=conv(inputs, outputs, 1),
            bn2=nn.BatchNorm2d(outputs),
            relu2=nn.ReLU6(),
        )
    )


class MobileNetV1(nn.Module):
    """A first convolution, thirteen separable ones, the mean over the image, and a readout.

    The readout is a 1×1 convolution, as the paper's authors count it: its density by ERK depends on that.
    """

    def __init__(self, classes: int, width: float) -> None:
        super().__init__()
        inputs = channels(32, width)
        self.conv1, self.bn1, self.relu1 = conv(3, inputs, 3, 2), nn.BatchNorm2d(inputs), nn.ReLU6()
        blocks = []
        for wide, stride in STAGES:
            blocks.append(separable(inputs, channels(wide, width), stride))
            inputs = channels(wide, width)
        self.blocks = nn.Sequential(*blocks)
        self.readout = nn.Conv2d(inputs, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] → [N, classes]."""
        x = self.blocks(self.relu1(self.bn1(self.conv1(x))))
        answers: Tensor = self.readout(x.mean((2, 3), keepdim=True))
        return answers.flatten(1)


@register_model("mobilenet-v1", input_shape=(3, 224, 224), classes=1000)
def mobilenet_v1(classes: int = 1000, width: float = 1.0) -> nn.Module:
    """MobileNet-v1 of the paper's ImageNet tables; its Big-Sparse has width 1.98."""
    return MobileNetV1(classes, width)
