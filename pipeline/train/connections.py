"""The connections of a network in training: the only code that touches gradients, weights and optimizer state."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.layer import Layer, Moment, View
from rigl_compress.pipeline.train.methods import Method
from rigl_compress.pipeline.train.rewire import marked
from rigl_compress.pipeline.train.start import warn
from rigl_compress.pipeline.train.update import Choice, choose, known
from rigl_compress.pipeline.train.zeros import Mark, check_place, check_zeros, keeps_zeros, marks


class Connections:
    """The layers of a network, with what a method does to them at every step and at an update."""

    def __init__(
        self, layers: Sequence[Layer], owners: Sequence[nn.Module], method: Method, optimizer: Optimizer, seed: int
    ) -> None:
        self.layers = list(layers)
        self.method = method
        self.optimizer = optimizer
        self.seed = seed
        self.changed: list[Tensor] = []  # connections that the last update took away, layer by layer
        self._owners = owners
        self._shown = True  # a straight-through method's weights are all in the model
        self._still: list[str] = []  # layers without a gradient, of which was told
        if method.straight_through:
            self._remember_weights()
        self._mask_weights()
        self._shown = False
        self._gradient_marks: list[Mark] = []
        self._weight_marks: list[Mark] | None = self._marks()

    # Every step

    def observe(self, step: int) -> None:
        """Do what the method does before gradients are masked."""
        if self.method.observe is not None:
            for layer in self.layers:
                if layer.gradient is not None:
                    self.method.observe(self._view(layer, step), layer.memory)

    def mask_gradients(self) -> None:
        """Zero the gradients of dead connections."""
        masked = [
            (layer.gradient, layer.gate)
            for layer in self.layers
            if layer.parameter.grad is not None and layer.active < layer.size
        ]
        if masked:
            # Zero gradient, zero weight and zero optimizer state stay zero under SGD, Adam and their like.
            gradients, gates = zip(*masked, strict=True)
            torch._foreach_mul_(gradients, gates)
        self._gradient_marks = marks(layer.parameter.grad for layer in self.layers)

    @torch.no_grad()
    def show_unseen_weights(self) -> None:
        """Let the optimizer work on all weights of a straight-through method, which computes with the largest (DNW)."""
        self._shown = True
        for layer in self.layers:
            layer.weight.copy_(layer.memory["unseen"])

    def follow_step(self, step: int) -> None:
        """Make dead weights zero again where the optimizer's step may have moved them."""
        if self.method.straight_through:
            self._remember_weights()
        elif not self._zeros_stayed():
            self._mask_weights()
        if self.method.constrain is not None:
            for layer in self.layers:
                self.method.constrain(self._view(layer, step), layer.memory)

    def end_step(self) -> None:
        """Note that the weights are as they should be."""
        if self.method.straight_through:
            self._mask_weights()
        self._shown = False
        self._weight_marks = self._marks()

    def _zeros_stayed(self) -> bool:
        """Whether dead weights stayed at zero: the optimizer saw the gradients as they were masked, and keeps zeros."""
        same = self._gradient_marks == marks(layer.parameter.grad for layer in self.layers)
        return same and keeps_zeros(self.optimizer)

    # What others do to the weights

    def check_weights(self) -> None:
        """Raise if the weights are no longer what the topology says. Looks at them only if they were written to."""
        check_place(self.layers, self._owners)
        if (now := self._marks()) != self._weight_marks:
            for layer in self.layers:
                layer.follow()
            check_zeros(self.layers)
            if self.method.straight_through:
                self._remember_weights()
            self._weight_marks = now

    def distrust_weights(self) -> None:
        """Let the next check look at the weights."""
        self._weight_marks = None

    def _marks(self) -> list[Mark]:
        return marks(layer.parameter for layer in self.layers)

    # An update

    def update(self, moment: Moment) -> bool:
        """Change the topology. False: what decides is not finite (half precision), nothing was changed."""
        layers = self._with_gradient()
        quotas = self.method.quota(layers, moment)
        if any(sum(quota) != layer.active for layer, quota in zip(layers, quotas, strict=True)):
            # How many live is a Python number: where it changes, the device is asked whether the scores are sound.
            told = [known(self.method, self._view(layer, moment.step), layer.places) for layer in layers]
            finite, stirred = torch.stack(told).T.tolist()
            if not all(finite):
                return False
            layers = [layer for layer, has_gradient in zip(layers, stirred, strict=True) if has_gradient]
            quotas = self.method.quota(layers, moment)
        changes = [(layer, quota) for layer, quota in zip(layers, quotas, strict=True) if quota != (layer.size, 0)]
        self.changed = [self._rewire(layer, moment.step, *quota) for layer, quota in changes]
        return True

    def _with_gradient(self) -> list[Layer]:
        """Give the layers that learn: the others (frozen, or in a branch that was not used) keep their connections."""
        still = [layer.name for layer in self.layers if layer.gradient is None]
        if len(still) == len(self.layers):
            raise InputError("no layer has a gradient: call sparse.step() between backward() and optimizer.step()")
        if still and not self._still:
            warn([f"{', '.join(still)} had no gradient at a topology update: such layers keep their connections"])
            self._still = still
        return [layer for layer in self.layers if layer.gradient is not None]

    def _rewire(self, layer: Layer, step: int, keep: int, new: int) -> Tensor:
        """Change the connections of a layer; gives how many were taken away."""
        view, before = self._view(layer, step), layer.places
        choice = choose(self.method, view, before, keep, new)
        if not self.method.straight_through:  # there dead weights and their optimizer state live on unseen
            self._settle(layer, view, choice)
        layer.settle_at(choice.places)
        return (~layer.mask.view(-1)[before]).sum()

    def _settle(self, layer: Layer, view: View, choice: Choice) -> None:
        """Zero the weights and the optimizer state of all that did not live through the update."""
        born = None if self.method.birth is None else self.method.birth(view)
        gate = choice.survivors.to(layer.gate.dtype)
        for tensor in (layer.weight, *self._states(layer)):
            tensor.mul_(gate)
        for key in self.method.own:
            layer.memory[key].mul_(choice.survivors)
        if born is not None:
            new = marked(choice.places, layer.mask.shape) & ~choice.survivors
            layer.weight.copy_(torch.where(new, born, layer.weight))

    def _states(self, layer: Layer) -> list[Tensor]:
        """All optimizer tensors that stand beside the weights: momentum, exp_avg, exp_avg_sq, max_exp_avg_sq, …"""
        values = self.optimizer.state.get(layer.parameter, {}).values()
        shape = layer.parameter.shape
        return [layer.part.of(value) for value in values if torch.is_tensor(value) and value.shape == shape]

    # Common

    @torch.no_grad()
    def _remember_weights(self) -> None:
        for layer in self.layers:
            unseen = layer.memory.setdefault("unseen", layer.weight.clone())
            unseen.copy_(layer.weight if self._shown else torch.where(layer.mask, layer.weight, unseen))

    @torch.no_grad()
    def _mask_weights(self) -> None:
        sparse = [layer for layer in self.layers if layer.active < layer.size]
        if sparse:
            torch._foreach_mul_([layer.weight for layer in sparse], [layer.gate for layer in sparse])

    def _view(self, layer: Layer, step: int) -> View:
        rate = _learning_rate(self.optimizer, layer.parameter) if self.method.observe else 0.0
        return layer.view(self.method.options, self.seed, step, rate)


def _learning_rate(optimizer: Optimizer, parameter: nn.Parameter) -> float:
    for group in optimizer.param_groups:
        if any(parameter is other for other in group["params"]):
            return float(group["lr"])
    return 0.0
