"""A registry of networks that pruning must get through, and short ways to write them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

IMAGE = (2, 3, 9, 9)
Example = Tensor | tuple[Any, ...]


@dataclass(frozen=True)
class Case:
    """How to build a network, and what goes into it."""

    build: Callable[[], nn.Module]
    example: Callable[[], Example]


NETWORKS: dict[str, Case] = {}


def case(name: str, *shapes: tuple[int, ...]) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a network that takes tensors of these shapes."""

    def decorate(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def example() -> Example:
            inputs = tuple(torch.randn(shape) for shape in shapes)
            return inputs if len(inputs) > 1 else inputs[0]

        assert name not in NETWORKS
        NETWORKS[name] = Case(build, example)
        return build

    return decorate


class Code(nn.Module):
    """Layers by name, and the code that calls them: Code(lambda self, x: self.fc(x), fc=nn.Linear(2, 2))."""

    def __init__(self, code: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            setattr(self, name, layer)
        self.code = code

    def forward(self, x: Tensor, other: Tensor | None = None) -> Any:
        return self.code(self, x) if other is None else self.code(self, x, other)


def coded(name: str, *shapes: tuple[int, ...], code: Callable[..., Any], layers: Callable[[], dict[str, Any]]) -> None:
    """Register a network that is written as `Code`."""
    case(name, *shapes)(lambda: Code(code, **layers()))


def conv(inputs: int, outputs: int, size: int = 3, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, **options)
