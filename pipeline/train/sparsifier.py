"""The sparsifier: the only code that touches gradients and optimizer state."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.layers import sparse_layers, sparse_parameters
from rigl_compress.models.topology import Topology, connections
from rigl_compress.pipeline.train.config import SparsityConfig
from rigl_compress.pipeline.train.gates import Gates
from rigl_compress.pipeline.train.layer import Layer, Moment, View
from rigl_compress.pipeline.train.randomness import generator
from rigl_compress.pipeline.train.rewire import best, marked, rewire


class Sparsifier:
    """Keeps a model sparse while your own loop trains it.

    Call `step()` between `backward()` and `optimizer.step()`. It masks the gradients of dead connections and returns
    False: take your step. Where the topology is updated in the place of a step (RigL, SNIP) it returns True: skip
    `optimizer.step()` and `scheduler.step()`. Methods that update after a step (SET, SNFS, pruning, …) do so by the
    optimizer's own post-step hook. `optimizer.step` is never wrapped or replaced.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> sparse = Sparsifier(model, optimizer, method="rigl", sparsity=0.75, distribution="erk", total_steps=100)
    >>> for _ in range(20):
    ...     model(torch.randn(4, 8)).square().mean().backward()
    ...     if not sparse.step():
    ...         optimizer.step()
    ...     optimizer.zero_grad()
    >>> round(sparse.topology.sparsity, 2), sparse.steps, sparse.updates
    (0.74, 19, 1)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        config: SparsityConfig | None = None,
        *,
        total_steps: int | None = None,
        seed: int = 0,
        topology: Topology | None = None,
        **settings: Any,
    ) -> None:
        """Give either a config or its fields as keywords. A `topology` is taken as it is instead of drawing one.

        `total_steps` are the optimizer steps of the whole run; the updates end after three quarters of them unless
        `end` says otherwise.
        """
        self.config = _config(config, settings)
        self.method = self.config.rule
        self.schedule = self.config.schedule(total_steps)
        self.seed = seed
        self.optimizer = optimizer
        self.steps = 0  # optimizer steps taken: what learning-rate schedules count
        self.updates = 0  # topology updates made
        self.changed = 0  # connections replaced by the last update
        self._updated_at: int | None = None
        self._pending: int | None = None  # an update that waits for the optimizer step to be taken
        self._layers = self._first_layers(model, topology)
        _check_owned(self._layers, optimizer)
        self._mask_weights()
        gating, strengths = self.method.gating, self.config.strengths_in(model)
        self.gates = None if gating is None else Gates(model, optimizer, gating, self.method.options, strengths)
        self._unit_densities = self.config.unit_densities(model)
        self._search_units()
        if not self.method.replaces_step:
            optimizer.register_step_post_hook(lambda *_: self._after_optimizer_step())

    # What people read

    @property
    def topology(self) -> Topology:
        """The connections alive now, as a copy."""
        parts: dict[str, list[Tensor]] = {}
        for layer in self._layers:
            parts.setdefault(layer.part.parameter, []).append(layer.mask)
        masks = {name: torch.cat(each) for name, each in parts.items()}
        return Topology(masks if self.gates is None else masks | self.gates.masks())

    @property
    def sparsity(self) -> float:
        """The share of places without a connection now; known without asking the device, but for gates."""
        if self.gates is not None:
            return self.topology.sparsity
        return 1 - sum(layer.active for layer in self._layers) / sum(layer.size for layer in self._layers)

    @property
    def update_due(self) -> bool:
        """Whether the next `step()` updates the topology in the place of the optimizer step (for closures)."""
        due = self.method.when(self.schedule, self.steps) and self._updated_at != self.steps
        return due and self.method.replaces_step

    # What a training loop calls

    @torch.no_grad()
    def step(self) -> bool:
        """Mask the gradients, or update the topology. True: this was an update, it takes the place of the step."""
        self._observe()
        if self.update_due:
            self._update(self.steps)
            return True
        if self.method.straight_through:
            self._show_unseen_weights()
        else:
            self._mask_gradients()
        if not self.method.replaces_step and self.method.when(self.schedule, self.steps):
            self._pending = self.steps
        self.steps += 1
        self._search_units()
        return False

    def penalty(self) -> Tensor | float:
        """Give what a structured method adds to the loss; 0 for all others."""
        return 0.0 if self.gates is None else self.gates.penalty()

    def finish(self) -> None:
        """End the training: gates are multiplied into the weights. Other methods have nothing left to do."""
        if self.gates is not None:
            if not self.gates.chosen:  # T_end is the end of the run
                self._choose_units()
            self.gates.fold()

    def state_dict(self) -> dict[str, Any]:
        """Give everything needed to go on: masks, what the method remembers, and counters."""
        return {
            "counters": {"steps": self.steps, "updates": self.updates, "changed": self.changed},
            "updated_at": self._updated_at,
            "pending": self._pending,
            "masks": {layer.name: layer.mask.clone() for layer in self._layers},
            "memory": {
                layer.name: {key: value.clone() for key, value in layer.memory.items()} for layer in self._layers
            },
            "gates": None if self.gates is None else self.gates.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` was taken. The weights and the optimizer are loaded by their owners."""
        counters = state["counters"]
        self.steps, self.updates, self.changed = counters["steps"], counters["updates"], counters["changed"]
        self._updated_at, self._pending = state["updated_at"], state.get("pending")
        for layer in self._layers:
            mask = state["masks"].get(layer.name)
            if mask is None or mask.shape != layer.mask.shape:
                raise InputError(f"the saved masks do not fit layer {layer.name!r}: they belong to another model")
            layer.settle_at(_places(mask.to(layer.mask.device)))
            layer.memory = {key: value.to(layer.mask.device) for key, value in state["memory"][layer.name].items()}
        if self.gates is not None:
            self.gates.load_state_dict(state["gates"])

    # The beginning

    def _first_layers(self, model: nn.Module, topology: Topology | None) -> list[Layer]:
        if topology is not None:
            topology.check_fits(model)
        densities, parameters = self.config.densities(model), sparse_parameters(model)
        layers = []
        for name, part in sparse_layers(model).items():
            given = None if topology is None else topology.get(part.parameter)
            layer = Layer.full(name, parameters[part.parameter], part, 0)
            layer.target = connections(densities[name], layer.size)
            layers.append(self._started(layer, None if given is None else part.of(given)))
        return layers

    @torch.no_grad()
    def _started(self, layer: Layer, given: Tensor | None) -> Layer:
        if given is not None:
            layer.settle_at(_places(given.to(layer.mask.device)))
            layer.target = layer.active
        elif self.method.start is not None and layer.target < layer.size:
            layer.settle_at(self.method.start(self._view(layer, step=-1), layer.target))
        return layer

    # Every step

    def _observe(self) -> None:
        if self.method.observe is not None:
            for layer in self._layers:
                if layer.gradient is not None:
                    self.method.observe(self._view(layer, self.steps), layer.memory)

    def _mask_gradients(self) -> None:
        masked = [
            (layer.gradient, layer.gate)
            for layer in self._layers
            if layer.parameter.grad is not None and layer.active < layer.size
        ]
        if masked:
            # Zero gradient, zero weight and zero optimizer state stay zero under SGD, Adam and AdamW.
            gradients, gates = zip(*masked, strict=True)
            torch._foreach_mul_(gradients, gates)

    @torch.no_grad()
    def _after_optimizer_step(self) -> None:
        if self.method.straight_through:
            self._remember_weights()
        if self.gates is not None:
            self.gates.constrain(self.optimizer.param_groups[0]["lr"])
        if self._pending is not None:
            step, self._pending = self._pending, None
            self._update(step)

    def _search_units(self) -> None:
        if self.gates is not None and self.steps >= self.schedule.begin:
            self.gates.search()

    def _choose_units(self) -> None:
        if self.gates is not None:
            self.changed = self.gates.choose(self._unit_densities, 1 - self.config.sparsity)

    # An update

    def _update(self, step: int) -> None:
        if self.gates is None:
            self._update_connections(step)
        else:
            self._choose_units()
        self._updated_at = step
        self.updates += 1

    def _update_connections(self, step: int) -> None:
        moment = Moment(step, self.schedule.at(step), self.schedule.passed(step))
        quotas = self.method.quota(self._layers, moment)
        self.changed = 0
        for layer, (keep, new) in zip(self._layers, quotas, strict=True):
            if (keep, new) != (layer.size, 0):
                self._rewire(layer, step, keep, new)
                self.changed += new

    def _rewire(self, layer: Layer, step: int, keep: int, new: int) -> None:
        view = self._view(layer, step)
        if self.method.straight_through:
            layer.settle_at(best(self.method.drop(view), keep))
            layer.weight.mul_(layer.gate)  # dead weights and their optimizer state live on unseen
            return
        drop = self.method.drop(view).reshape(-1)[layer.places]
        grow = None if self.method.grow is None else self.method.grow(view)
        places = rewire(layer.places, drop, grow, keep, new)
        if grow is not None and keep + new == layer.active:
            # A gradient that overflowed (half precision) says nothing: stay as we are. Decided on the device.
            places = torch.where(torch.isfinite(grow.sum()), places, layer.places)
        unbroken = places if self.method.keeps_regrown else rewire(layer.places, drop, None, keep, 0)
        self._settle(layer, view, layer.mask & marked(unbroken, layer.mask.shape), marked(places, layer.mask.shape))
        layer.settle_at(places)

    def _settle(self, layer: Layer, view: View, survivors: Tensor, mask: Tensor) -> None:
        """Zero the weights and the optimizer state of all that did not live through the update."""
        born = None if self.method.birth is None else self.method.birth(view) * (mask & ~survivors)
        gate = survivors.to(layer.gate.dtype)
        for tensor in (layer.weight, *self._states(layer)):
            tensor.mul_(gate)
        if born is not None:
            layer.weight.add_(born)

    def _states(self, layer: Layer) -> list[Tensor]:
        """All optimizer tensors that stand beside the weights: momentum, exp_avg, exp_avg_sq, max_exp_avg_sq, …"""
        values = self.optimizer.state.get(layer.parameter, {}).values()
        shape = layer.parameter.shape
        return [layer.part.of(value) for value in values if torch.is_tensor(value) and value.shape == shape]

    # Straight-through weights (DNW): the model computes with the largest weights, the optimizer works on all of them.

    def _show_unseen_weights(self) -> None:
        for layer in self._layers:
            if "unseen" in layer.memory:
                layer.weight.copy_(layer.memory["unseen"])

    def _remember_weights(self) -> None:
        for layer in self._layers:
            layer.memory.setdefault("unseen", torch.empty_like(layer.weight)).copy_(layer.weight)

    # Common

    def _view(self, layer: Layer, step: int) -> View:
        weight, gradient = layer.weight, layer.gradient
        return View(
            weight=weight,
            gradient=torch.zeros_like(weight) if gradient is None else gradient,
            mask=layer.mask,
            memory=layer.memory,
            options=self.method.options,
            random=generator(self.seed, step, layer.name, weight.device),
            learning_rate=_learning_rate(self.optimizer, layer.parameter) if self.method.observe else 0.0,
        )

    @torch.no_grad()
    def _mask_weights(self) -> None:
        if self.method.straight_through:
            self._remember_weights()
        for layer in self._layers:
            if layer.active < layer.size:
                layer.weight.mul_(layer.gate)


def _config(config: SparsityConfig | None, settings: Mapping[str, Any]) -> SparsityConfig:
    if config is not None and settings:
        raise InputError("give either a SparsityConfig or keywords, not both")
    known = [field.name for field in fields(SparsityConfig)]
    for name in settings:
        if name not in known:
            raise InputError(f"Sparsifier has no setting {name!r}: {did_you_mean(name, known)}")
    return config or SparsityConfig(**settings)


def _places(mask: Tensor) -> Tensor:
    return mask.reshape(-1).nonzero().squeeze(1)


def _check_owned(layers: list[Layer], optimizer: Optimizer) -> None:
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [layer.name for layer in layers if id(layer.parameter) not in owned]
    if missing:
        raise InputError(f"the optimizer does not hold {', '.join(missing)}: give it the model's parameters")


def _learning_rate(optimizer: Optimizer, parameter: nn.Parameter) -> float:
    for group in optimizer.param_groups:
        if any(parameter is other for other in group["params"]):
            return float(group["lr"])
    return 0.0
