"""The sparsifier: keeps a network sparse inside of anybody's training loop."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.train.config import SparsityConfig
from rigl_compress.pipeline.train.connections import Connections
from rigl_compress.pipeline.train.gates import Gates
from rigl_compress.pipeline.train.layer import Moment
from rigl_compress.pipeline.train.replicas import check_replicas
from rigl_compress.pipeline.train.start import (
    check_method,
    check_owned,
    first_layers,
    places_of,
    remarks,
    stay_dense,
    unreached,
    warn,
)
from rigl_compress.pipeline.train.turns import Turns


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
        `end` says otherwise. Layers that a given topology lacks stay dense.
        """
        self.config = _config(config, settings)
        self.method = self.config.rule
        check_method(self.method, topology)
        self.schedule = self.config.schedule(total_steps)
        self.seed = seed
        self.optimizer = optimizer
        self.steps = 0  # steps offered to the optimizer: what learning-rate schedules count
        self.updates = 0  # topology updates made
        self.left_dense = unreached(model, self.method)  # weights that sparse training does not know, with their sizes
        self._updated_at: int | None = None
        self._pending: int | None = None  # an update that waits for the optimizer step to be taken
        layers = first_layers(model, self.config, seed, topology)
        check_owned(layers, optimizer)
        check_replicas(layers, seed)
        owners = [model.get_submodule(layer.part.parameter.rpartition(".")[0]) for layer in layers]
        self._connections = Connections(layers, owners, self.method, optimizer, seed)
        gating, strengths = self.method.gating, self.config.strengths_in(model)
        self.gates = None if gating is None else Gates(model, optimizer, gating, self.method.options, strengths)
        self._unit_densities = self.config.unit_densities(model)
        self._search_units()
        self._turns = Turns(optimizer, self._before_optimizer_step, self._after_optimizer_step)
        warn([*stay_dense(self.left_dense), *remarks(model, layers, topology)])

    # What people read

    @property
    def topology(self) -> Topology:
        """The connections alive now, as a copy."""
        parts: dict[str, list[Tensor]] = {}
        for layer in self._connections.layers:
            parts.setdefault(layer.part.parameter, []).append(layer.mask)
        masks = {name: torch.cat(each) for name, each in parts.items()}
        units = {} if self.gates is None else self.gates.masks()
        return Topology(masks | {name: masks[name] & mask for name, mask in units.items()})

    @property
    def sparsity(self) -> float:
        """The share of places without a connection now; known without asking the device, but for gates."""
        self._connections.check_weights()
        if self.gates is not None:
            return self.topology.sparsity
        return 1 - sum(layer.active for layer in self._connections.layers) / sum(
            layer.size for layer in self._connections.layers
        )

    @property
    def changed(self) -> int:
        """The connections that the last update took away (units, with structured methods). Waits for the device."""
        return int(sum(self._connections.changed))

    @property
    def update_due(self) -> bool:
        """Whether the next `step()` updates the topology in the place of the optimizer step (for closures)."""
        due = self.method.when(self.schedule, self.steps) and self._updated_at != self.steps
        return due and self.method.replaces_step

    # What a training loop calls

    @torch.no_grad()
    def step(self) -> bool:
        """Mask the gradients, or update the topology. True: this was an update, it takes the place of the step."""
        if self._turns.repeated:
            self._mask_again()
            return False
        self._connections.check_weights()
        self._connections.observe(self.steps)
        if self.update_due:
            self._turns.offered = False
            self._update_instead()
            return True
        if not self.method.replaces_step and self.method.when(self.schedule, self.steps):
            self._pending = self.steps
        self._offer()
        self.steps += 1
        self._search_units()
        return False

    def penalty(self) -> Tensor | float:
        """Give what a structured method adds to the loss; 0 for all others."""
        return 0.0 if self.gates is None else self.gates.penalty()

    def finish(self) -> None:
        """End the training: gates are multiplied into the weights. Other methods have nothing left to do."""
        if self.gates is not None:
            if not self.gates.chosen and not self._choose_units():  # T_end is the end of the run
                raise InputError("the weights or gates are not finite: training diverged, lower the learning rate")
            self.gates.fold()
            self._connections.end_step()

    def state_dict(self) -> dict[str, Any]:
        """Give everything needed to go on: masks, what the method remembers, and counters."""
        return {
            "counters": {"steps": self.steps, "updates": self.updates, "changed": self.changed},
            "updated_at": self._updated_at,
            "pending": self._pending,
            "masks": {layer.name: layer.mask.clone() for layer in self._connections.layers},
            "memory": {
                layer.name: {key: value.clone() for key, value in layer.memory.items()}
                for layer in self._connections.layers
            },
            "gates": None if self.gates is None else self.gates.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state_dict` was taken. The weights and the optimizer are loaded by their owners."""
        counters, layers = state["counters"], self._connections.layers
        for layer in layers:
            mask = state["masks"].get(layer.name)
            if mask is None or mask.shape != layer.mask.shape:
                raise InputError(f"the saved masks do not fit layer {layer.name!r}: they belong to another model")
        self.steps, self.updates = counters["steps"], counters["updates"]
        self._connections.changed = [torch.tensor(counters["changed"])]
        self._updated_at, self._pending = state["updated_at"], state.get("pending")
        for layer in layers:
            layer.settle_at(places_of(state["masks"][layer.name].to(layer.mask.device)))
            layer.memory = {key: value.to(layer.mask.device) for key, value in state["memory"][layer.name].items()}
        if self.gates is not None:
            self.gates.load_state_dict(state["gates"])
        self._connections.distrust_weights()  # the next step looks whether the weights are those of this state

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_turns": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)  # an optimizer loses its hooks when it is copied: a copy sets its own
        self._turns = Turns(self.optimizer, self._before_optimizer_step, self._after_optimizer_step)

    # Every step

    def _offer(self) -> None:
        """Let the optimizer take its step."""
        if not self.method.straight_through:
            self._connections.mask_gradients()
        elif self._turns.in_closure:  # else they are shown when the step is taken: a gradient scaler may leave it out
            self._connections.show_unseen_weights()
        self._turns.offered = True

    def _mask_again(self) -> None:
        if self.method.straight_through:
            raise InputError(
                f"method {self.method.name!r} needs an optimizer that evaluates its closure once: "
                f"{type(self.optimizer).__name__} does so several times"
            )
        self._connections.mask_gradients()

    def _before_optimizer_step(self) -> None:
        if self.method.straight_through:
            self._connections.show_unseen_weights()

    @torch.no_grad()
    def _after_optimizer_step(self) -> None:
        self._connections.follow_step(self.steps)
        if self.gates is not None:
            self.gates.constrain(self.optimizer.param_groups[0]["lr"])
        if self._pending is not None and self._update(self._pending):
            self._pending = None
        self._connections.end_step()

    # An update

    def _update_instead(self) -> None:
        if self._turns.in_closure:
            self._turns.in_closure = False
            raise InputError(
                "an update is due in the place of this step: where sparse.update_due is True, call the closure alone "
                "instead of optimizer.step(closure)"
            )
        self._update(self.steps)
        self._connections.end_step()

    def _update(self, step: int) -> bool:
        """Update the topology. False: what decides is not finite (half precision), so it waits for the next step."""
        moment = Moment(step, self.schedule.at(step), self.schedule.passed(step))
        done = self._connections.update(moment) if self.gates is None else self._choose_units()
        if done:
            self._updated_at = step
            self.updates += 1
        return done

    def _search_units(self) -> None:
        if self.gates is not None and self.steps >= self.schedule.begin:
            self.gates.search()

    def _choose_units(self) -> bool:
        dead = None if self.gates is None else self.gates.choose(self._unit_densities, 1 - self.config.sparsity)
        self._connections.changed = [torch.tensor(dead or 0)]
        return dead is not None


def _config(config: SparsityConfig | None, settings: Mapping[str, Any]) -> SparsityConfig:
    if config is not None and settings:
        raise InputError("give either a SparsityConfig or keywords, not both")
    known = [field.name for field in fields(SparsityConfig)]
    for name in settings:
        if name not in known:
            raise InputError(f"Sparsifier has no setting {name!r}: {did_you_mean(name, known)}")
    return config or SparsityConfig(**settings)
