"""Multi-layer perceptrons: LeNet-300-100 of the paper's MNIST comparison, and others of its kind."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import register_model

MOST_HIDDEN = 1000  # a file can contain any number


def scaled(width: int, factor: float) -> int:
    """Scale a layer's width to at least 1.

    >>> scaled(300, 0.5), scaled(3, 0.01)
    (150, 1)
    """
    return max(1, round(width * factor))


def perceptron(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers fc1, fc2, … with ReLU between them; images are flattened first.

    >>> [name for name, _ in perceptron([784, 300, 10]).named_children()]
    ['flatten', 'fc1', 'relu1', 'fc2']
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(
            f"a perceptron has sizes {list(sizes)}, expected at least an input and an output size, each 1 or more"
        )
    if len(sizes) > MOST_HIDDEN + 2:
        raise InputError(f"a perceptron has {len(sizes) - 2:,} hidden layers, expected at most {MOST_HIDDEN:,}")
    modules: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for number, (inputs, outputs) in enumerate(pairwise(sizes), start=1):
        modules[f"fc{number}"] = nn.Linear(inputs, outputs)
        if number < len(sizes) - 1:
            modules[f"relu{number}"] = nn.ReLU()
    return nn.Sequential(modules)


@register_model("lenet-300-100", input_shape=(1, 28, 28), classes=10)
def lenet_300_100(classes: int = 10, width: float = 1.0, inputs: int = 784) -> nn.Module:
    """LeNet-300-100: the perceptron 784-300-100-10 of the paper's Appendix B."""
    return perceptron([inputs, scaled(300, width), scaled(100, width), classes])


@register_model("mlp", input_shape=(1, 28, 28), classes=10)
def mlp(classes: int = 10, width: float = 1.0, inputs: int = 784, hidden: Sequence[int] = (1024, 1024)) -> nn.Module:
    """A perceptron with hidden layers of your choice."""
    return perceptron([inputs, *(scaled(size, width) for size in hidden), classes])
