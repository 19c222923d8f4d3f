"""The state of one sparse layer in training, and the view of it that scores are functions of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt

import torch
from torch import Tensor, nn

from rigl_compress.core.random_generators import generator
from rigl_compress.core.tensor_blocks import block_bounds, true_positions
from rigl_compress.models.sparse_parameters import Part


@dataclass
class Layer:
    """One masked weight of a network in training, or a part of one. Only the sparsifier changes it."""

    name: str
    parameter: nn.Parameter
    part: Part
    target: int  # active connections at the end of training
    active: int  # connections that are active now, known without asking the device
    mask: Tensor  # which they are, as booleans: a byte for each connection is all that a layer keeps
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the method remembers; saved with checkpoints
    unmasked: Tensor | None = None  # the gradient of all connections, where an update follows the optimizer step

    @classmethod
    def full(cls, name: str, parameter: nn.Parameter, part: Part) -> "Layer":
        """Return a layer with all its connections active."""
        weight = part.of(parameter.detach())
        mask = torch.ones(weight.shape, dtype=torch.bool, device=weight.device)
        return cls(name, parameter, part, weight.numel(), weight.numel(), mask)

    @classmethod
    def empty(cls, name: str, parameter: nn.Parameter, part: Part, target: int) -> "Layer":
        """Return a layer with none of its connections active yet."""
        weight = part.of(parameter.detach())
        mask = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
        return cls(name, parameter, part, target, 0, mask)

    @classmethod
    def unwired(cls, name: str, parameter: nn.Parameter, part: Part) -> "Layer":
        """Return a layer without connections or masks, on the CPU if its weight has no memory, to draw some for it."""
        place = "cpu" if parameter.is_meta else parameter.device
        mask = torch.ones((), dtype=torch.bool, device=place).expand(parameter.shape)
        stand_in = nn.Parameter(torch.zeros((), device=place).expand(parameter.shape), requires_grad=False)
        weight = stand_in if parameter.is_meta else parameter
        return cls(name, weight, part, 0, 0, mask)

    @property
    def weight(self) -> Tensor:
        """The weights themselves, to be read and written."""
        return self.part.of(self.parameter.detach())

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of the weights, to be read and written, if there is one."""
        return None if self.parameter.grad is None else self.part.of(self.parameter.grad)

    @property
    def shape(self) -> torch.Size:
        """The shape of the dense weight."""
        return self.mask.shape

    @property
    def size(self) -> int:
        """The number of connections, active or not."""
        return self.shape.numel()

    @property
    def masked(self) -> bool:
        """Whether there are inactive connections that other code could write to."""
        return self.active < self.size

    @property
    def positions(self) -> Tensor:
        """The flat positions of the active connections, ascending, as a new tensor."""
        return true_positions(self.mask, self.active)

    def follow_weight(self) -> None:
        """Move to the device and dtype of the weight: a model may be converted after the sparsifier was built."""
        weight = self.weight
        self.mask = self.mask.to(weight.device)
        self.memory = {
            key: value.to(weight if value.is_floating_point() else weight.device) for key, value in self.memory.items()
        }

    def view(self, options: Mapping[str, float], seed: int, step: int, learning_rate: float = 0.0) -> "LayerView":
        """Return what scores are functions of, with the random numbers of a step."""
        weight, gradient = self.weight, self.gradient if self.unmasked is None else self.unmasked
        return LayerView(
            weight=weight,
            gradient=weight.new_zeros(()).expand(weight.shape) if gradient is None else gradient,
            mask=self.mask,
            memory=self.memory,
            options=options,
            random=generator(seed, step, self.name, weight.device),
            learning_rate=learning_rate,
        )

    def activate(self, positions: Tensor) -> None:
        """Make the connections at these positions active and all others inactive, in place."""
        self.mask.zero_().view(-1).index_fill_(0, positions, True)
        self.active = len(positions)


@dataclass(frozen=True)
class LayerView:
    """What scores are functions of: a layer's tensors, its memory, and the random numbers of a step."""

    weight: Tensor
    gradient: Tensor
    mask: Tensor
    memory: Mapping[str, Tensor]
    options: Mapping[str, float]
    random: torch.Generator | None
    learning_rate: float = 0.0

    def block(self, start: int, end: int) -> "LayerView":
        """Return the view of the connections from one flat position to another; random numbers are drawn in order."""
        if (start, end) == (0, self.weight.numel()):
            return self
        shape = self.weight.shape
        memory = {key: each.reshape(-1)[start:end] for key, each in self.memory.items() if each.shape == shape}
        weight, gradient, mask = (each.reshape(-1)[start:end] for each in (self.weight, self.gradient, self.mask))
        return replace(self, weight=weight, gradient=gradient, mask=mask, memory={**self.memory, **memory})

    def blocks(self) -> list[tuple[int, int]]:
        """Return the flat positions at which blocks start and end."""
        return block_bounds(self.weight)

    def at(self, positions: Tensor) -> "LayerView":
        """Return the view of the connections at flat positions, without random numbers."""
        memory = {
            key: each.reshape(-1)[positions] for key, each in self.memory.items() if each.shape == self.mask.shape
        }
        weight, gradient, mask = (each.reshape(-1)[positions] for each in (self.weight, self.gradient, self.mask))
        kept = {**self.memory, **memory}
        return replace(self, weight=weight, gradient=gradient, mask=mask, memory=kept, random=None)

    def has_gradient(self) -> Tensor:
        """Whether any connection has a gradient other than zero, as a boolean on the device."""
        flat = self.gradient.reshape(-1)
        return torch.stack([flat[start:end].any() for start, end in self.blocks()]).any()

    def noise(self) -> Tensor:
        """Draw a standard normal number for each connection."""
        return torch.randn(self.weight.shape, generator=self.random, device=self.weight.device, dtype=self.weight.dtype)

    def uniform(self) -> Tensor:
        """Draw a number of [0, 1) for each connection."""
        return torch.rand(self.weight.shape, generator=self.random, device=self.weight.device, dtype=torch.float32)


@dataclass(frozen=True)
class UpdatePoint:
    """An update in the schedule: its step, the drop fraction f_decay(t), and the share of the schedule before it."""

    step: int
    fraction: float
    passed: float


def noise_scale(temperature: float, learning_rate: float) -> float:
    """Return the factor of unit noise in a gradient so that an SGD step adds noise of variance 2·lr·temperature.

    >>> noise_scale(0.5, 0.01)
    10.0
    """
    return sqrt(2 * temperature / learning_rate) if learning_rate > 0 else 0.0
