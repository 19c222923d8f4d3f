"""LeNet-5: the first convolutional network, with ReLU and max-pooling."""

from collections import OrderedDict

from torch import nn

from rigl_compress.models.model_registry import register_model
from rigl_compress.models.networks.convolutions import channels


@register_model("lenet-5", input_shape=(1, 28, 28), classes=10)
def lenet_5(classes: int = 10, width: float = 1.0) -> nn.Module:
    """LeNet-5: two 5×5 convolutions with pooling and three linear layers, for 28×28 images."""
    conv1, conv2, fc1, fc2 = (channels(count, width) for count in (6, 16, 120, 84))
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, conv1, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(conv1, conv2, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(25 * conv2, fc1),
            relu3=nn.ReLU(),
            fc2=nn.Linear(fc1, fc2),
            relu4=nn.ReLU(),
            fc3=nn.Linear(fc2, classes),
        )
    )
