"""What a method sees of one sparse layer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import Tensor, nn

from rigl_compress.models.layers import Part
from rigl_compress.pipeline.train.randomness import generator


@dataclass
class Layer:
    """One masked weight of a network in training, or a part of one. Only the sparsifier changes it."""

    name: str
    parameter: nn.Parameter
    part: Part
    target: int  # connections alive at the end of training
    places: Tensor  # flat positions of the living connections; its length is known without asking the device
    mask: Tensor  # the same as booleans
    gate: Tensor  # the same in the weight's dtype: gradients are multiplied by it at every step
    memory: dict[str, Tensor] = field(default_factory=dict)  # what the method remembers; saved with checkpoints

    @classmethod
    def full(cls, name: str, parameter: nn.Parameter, part: Part, target: int) -> "Layer":
        """A layer with all its connections."""
        weight = part.of(parameter.detach())
        places = torch.arange(weight.numel(), device=weight.device)
        mask = torch.ones(weight.shape, dtype=torch.bool, device=weight.device)
        return cls(name, parameter, part, target, places, mask, mask.to(weight.dtype))

    @property
    def weight(self) -> Tensor:
        """The weights themselves, to be read and written."""
        return self.part.of(self.parameter.detach())

    @property
    def gradient(self) -> Tensor | None:
        """Their gradient, to be read and written, if there is one."""
        return None if self.parameter.grad is None else self.part.of(self.parameter.grad)

    @property
    def size(self) -> int:
        """All places of the tensor."""
        return self.mask.numel()

    @property
    def active(self) -> int:
        """The connections alive."""
        return len(self.places)

    def follow(self) -> None:
        """Go where the weights are: a model may be moved or converted after the sparsifier was built."""
        weight = self.weight
        self.places, self.mask = self.places.to(weight.device), self.mask.to(weight.device)
        self.gate = self.gate.to(weight)
        self.memory = {
            key: value.to(weight if value.is_floating_point() else weight.device) for key, value in self.memory.items()
        }

    def view(self, options: Mapping[str, float], seed: int, step: int, learning_rate: float = 0.0) -> "View":
        """Give what scores are functions of, with the randomness of a step."""
        weight, gradient = self.weight, self.gradient
        return View(
            weight=weight,
            gradient=torch.zeros_like(weight) if gradient is None else gradient,
            mask=self.mask,
            memory=self.memory,
            options=options,
            random=generator(seed, step, self.name, weight.device),
            learning_rate=learning_rate,
        )

    def settle_at(self, places: Tensor) -> None:
        """Let the connections live at these places, in the tensors that others may hold."""
        for dense, alive in ((self.mask, True), (self.gate, 1)):
            dense.view(-1).index_fill_(0, self.places, 0).index_fill_(0, places, alive)
        self.places = places.sort().values  # ties must fall alike in a resumed run, which knows the mask alone


@dataclass(frozen=True)
class View:
    """The facts that scores are functions of: a layer's tensors, its memory, and the randomness of this moment."""

    weight: Tensor
    gradient: Tensor
    mask: Tensor
    memory: Mapping[str, Tensor]
    options: Mapping[str, float]
    random: torch.Generator | None
    learning_rate: float = 0.0

    def noise(self) -> Tensor:
        """Draw one standard normal number per place."""
        return torch.randn(self.weight.shape, generator=self.random, device=self.weight.device, dtype=self.weight.dtype)

    def uniform(self) -> Tensor:
        """Draw one number of [0, 1) per place."""
        return torch.rand(self.weight.shape, generator=self.random, device=self.weight.device, dtype=torch.float32)


@dataclass(frozen=True)
class Moment:
    """When an update happens: the step, f_decay(t), and the share of the schedule that has passed."""

    step: int
    fraction: float
    passed: float


def noise_scale(temperature: float, learning_rate: float) -> float:
    """Give the factor of unit noise in a gradient so that one SGD step adds a walk of variance 2·lr·temperature.

    >>> noise_scale(0.5, 0.01)
    10.0
    """
    return sqrt(2 * temperature / learning_rate) if learning_rate > 0 else 0.0
