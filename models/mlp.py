"""Multi-layer perceptrons: LeNet-300-100 of the paper's MNIST comparison, and others of its kind."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.networks import ModelSpec, register_model


def scaled(width: int, factor: float) -> int:
    """Scale a layer's width, never to nothing.

    >>> scaled(300, 0.5), scaled(3, 0.01)
    (150, 1)
    """
    return max(1, round(width * factor))


class Select(nn.Module):
    """Picks some features of the full input, so that a network that needs few keeps its interface."""

    index: Tensor

    def __init__(self, index: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("index", torch.tensor(index, dtype=torch.int64))

    def forward(self, features: Tensor) -> Tensor:
        """[batch, all] → [batch, picked]."""
        return features.index_select(1, self.index)


def perceptron(sizes: Sequence[int], select: Sequence[int] | None = None) -> nn.Sequential:
    """Fully connected layers fc1, fc2, … with ReLU between them; images are flattened first.

    >>> [name for name, _ in perceptron([784, 300, 10]).named_children()]
    ['flatten', 'fc1', 'relu1', 'fc2']
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(
            f"a perceptron needs at least an input and an output size, each 1 or more; found {list(sizes)}"
        )
    modules: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    if select is not None:
        modules["select"] = Select(select)
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
def mlp(
    classes: int = 10,
    width: float = 1.0,
    inputs: int = 784,
    hidden: Sequence[int] = (1024, 1024),
    select: Sequence[int] | None = None,
) -> nn.Module:
    """A perceptron with hidden layers of your choice; `select` lists the input features it looks at."""
    sizes = [inputs if select is None else len(select), *(scaled(size, width) for size in hidden), classes]
    return perceptron(sizes, select)


def narrowed(spec: ModelSpec, live: Sequence[Tensor]) -> ModelSpec:
    """Give the perceptron that is left of another when only the living units stay: inputs, hidden layers, outputs.

    >>> lenet = ModelSpec("lenet-300-100", {"classes": 10})
    >>> live = [torch.arange(784) < 2, torch.arange(300) < 30, torch.arange(100) < 20, torch.ones(10).bool()]
    >>> narrowed(lenet, live).options
    {'classes': 10, 'hidden': [30, 20], 'select': [0, 1]}
    """
    if spec.name not in ("lenet-300-100", "mlp"):
        raise InputError(f"only perceptrons can be narrowed to their living units; {spec.name!r} is not one")
    picked = torch.nonzero(live[0]).flatten()
    if (earlier := spec.options.get("select")) is not None:
        picked = torch.tensor(earlier)[picked]
    hidden = [int(units.sum()) for units in live[1:-1]]
    return ModelSpec("mlp", {"classes": len(live[-1]), "hidden": hidden, "select": picked.tolist()})
