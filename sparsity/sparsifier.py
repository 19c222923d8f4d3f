"""The sparsifier: keeps a network sparse within any training loop."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.models.innermost_layout import forget_layout
from rigl_compress.models.innermost_modules import keep_layout
from rigl_compress.models.sparse_modules import SparseConv2d
from rigl_compress.models.sparse_runs import join_runs, split_runs
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.connections import Connections
from rigl_compress.sparsity.initial_topology import (
    check_method,
    check_owned,
    check_plain,
    check_topology,
    initial_layers,
    start_densities,
    topology_warnings,
    unsupported_warnings,
    unsupported_weights,
    warn,
)
from rigl_compress.sparsity.kernel_choice import masked_reasons, masked_warnings
from rigl_compress.sparsity.layer_state import UpdatePoint
from rigl_compress.sparsity.magnitude_topology import chosen_topology
from rigl_compress.sparsity.masked_layers import MaskedLayers
from rigl_compress.sparsity.optimizer_forms import allocated_in, save_dense_state
from rigl_compress.sparsity.optimizer_gradients import has_gradients, innermost
from rigl_compress.sparsity.rank_agreement import (
    average_gradients,
    check_same_connections,
    check_whole,
    start_alike,
)
from rigl_compress.sparsity.replica_check import check_replicas
from rigl_compress.sparsity.sparsity_config import SparsityConfig
from rigl_compress.sparsity.step_order import StepHooks
from rigl_compress.sparsity.updater import updater_for


class Sparsifier:
    """Keeps a model sparse while your own loop trains it.

    Call `step()` between `backward()` and `optimizer.step()`. It masks the gradients of inactive connections and
    returns False: take your step. Where a topology update takes the place of a step (RigL, SNIP) it returns True: skip
    `optimizer.step()` and `scheduler.step()`. If the loop takes that step nevertheless, it does nothing: the optimizer
    finds no gradients. Methods that update after a step (SET, SNFS, pruning, …) do so by the optimizer's own post-step
    hook. `optimizer.step` is never wrapped or replaced.

    With `automatic=True` the optimizer's own pre-step hook calls `step()`, in any loop.

    `method` is the name of a registered method, `package.module:NAME`, or a `Method`.

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
        topology: Topology | str | None = None,
        automatic: bool = False,
        example_input: Any = None,
        **settings: Any,
    ) -> None:
        """Take either a config or its fields as keywords. A `topology` is used as it is instead of drawing one.

        `total_steps` are the optimizer steps of the whole run; the updates end after three quarters of them unless
        `end` is set. Layers that a given topology lacks stay dense. "magnitude" begins at the largest weights of each
        layer, "magnitude-global" at the largest of all layers together. The distribution "budget" needs an
        `example_input`, of which the first sample counts.
        """
        given_config = config_from(config, settings)
        self.config = given_config if example_input is None else given_config.fitted(model, example_input)
        self.method = self.config.rule
        check_method(self.method, topology)
        check_plain(model)
        self.schedule = self.config.schedule(total_steps)
        self.seed = seed
        self.optimizer = innermost(optimizer)
        self.automatic = automatic  # `step` is called by the optimizer's hooks, unless the loop calls it
        self.steps = 0  # steps of the optimizer that were allowed: what learning-rate schedules count
        self._updates = 0  # topology updates made
        self._uncounted: list[Tensor] = []  # updates since, each a boolean on the device: whether any score was usable
        self.left_dense = unsupported_weights(model, self.method)  # weights that stay dense, with their sizes
        self._updated_at: int | None = None
        self._pending: int | None = None  # the step of an update that waits for the optimizer
        given = chosen_topology(topology, model, self.config) if isinstance(topology, str) else topology
        check_topology(model, given)
        densities = start_densities(model, self.config, given)
        self.masked = masked_reasons(model, self.method, densities, self.config.kernels)  # why layers are not sparse
        with allocated_in(self.optimizer, model):
            layers = initial_layers(model, self.config, seed, given, self.masked)
        self._runs = join_runs(model)  # the sequences that compute several sparse layers at once
        self._in_layout = keep_layout(model.modules()) if _has_sparse_convolutions(model) else []
        check_owned(layers, self.optimizer, frozen=isinstance(topology, Topology))
        check_whole({layer.name: layer.parameter for layer in layers})
        self._replicated = check_replicas(layers, seed)  # other processes train the same network
        self._layers = masked = MaskedLayers(model, layers, self.method, self.optimizer, seed)
        self.updater = updater_for(masked, model, self.config, self.schedule)
        if self._replicated:
            start_alike(self.updater.parameters.values())
        self.updater.begin_step(self.steps)
        self._hooks = self._hook_in()
        left_masked = masked_warnings(self.masked, densities, self.config.kernels)
        idle = [] if example_input is None else self.config.met_already()
        left_out = [*unsupported_warnings(self.left_dense), *given_config.ignored(), *idle]
        warn([*left_out, *topology_warnings(model, layers, given), *left_masked])

    # State

    @property
    def topology(self) -> Topology:
        """The active connections, as a copy."""
        return self.updater.topology

    @property
    def sparsity(self) -> float:
        """The share of inactive connections. Raises if their weights are not zero. Waits for the device."""
        self.updater.check_weights()
        return self.updater.sparsity

    @property
    def changed(self) -> int:
        """The connections (units, with structured methods) that the last update dropped. Waits for the device."""
        return int(sum(self.updater.changed))

    @property
    def updates(self) -> int:
        """The topology updates made; those from an overflowed gradient changed nothing and do not count.

        Waits for the device.
        """
        self._updates += sum(map(int, self._uncounted))
        self._uncounted.clear()
        return self._updates

    @property
    def updated_at(self) -> int | None:
        """The step of the last update, known without waiting for the device; None: there was none yet."""
        return self._updated_at

    @property
    def update_due(self) -> bool:
        """Whether the next `step()` updates the topology instead of the optimizer step."""
        due = self.method.when(self.schedule, self.steps) and self._updated_at != self.steps
        return due and self.method.replaces_step

    # What a training loop calls

    @torch.no_grad()
    def step(self) -> bool:
        """Mask the gradients, or update the topology. True: this was an update, it takes the place of the step."""
        self._hooks.calls += 1
        if self._hooks.repeated:
            return self._repeat_step()
        self._hooks.forbid()
        self._layers.keep_gradients(False)
        self.updater.check_weights()
        if self._replicated:
            average_gradients(self.updater.parameters.values())
        self.updater.observe(self.steps)
        if self.update_due:
            self._update(self.steps)
            self.updater.end_step()
            self._hooks.replace(self.optimizer)
            return True
        if not self.method.replaces_step and self.method.when(self.schedule, self.steps):
            self._pending = self.steps
        self._layers.keep_gradients(self._pending is not None)
        self.updater.prepare_step(self._hooks.in_closure)
        self._hooks.allow()
        self.steps += 1
        self.updater.begin_step(self.steps)
        return False

    def penalty(self) -> Tensor | float:
        """Return what a structured method adds to the loss; 0 for all others."""
        return self.updater.penalty()

    def finish(self) -> None:
        """End the training: gates are multiplied into the weights, sparse layers become plain ones."""
        self.updater.finish()
        split_runs(self._runs)
        forget_layout(self._in_layout)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume: masks, what the method remembers, and counters."""
        return {**self.numbers, **self.updater.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned. Load the weights and the optimizer separately."""
        self.updater.load_state_dict(state)
        self.load_numbers(state)

    @property
    def numbers(self) -> dict[str, Any]:
        """The part of the state that is no tensor: counters, and the steps of updates."""
        return {
            "counters": {"steps": self.steps, "updates": self.updates, "changed": self.changed},
            "updated_at": self._updated_at,
            "pending": self._pending,
        }

    def load_numbers(self, state: Mapping[str, Any]) -> None:
        """Restore `numbers`."""
        counters = state["counters"]
        self.steps, self._updates, self._uncounted = counters["steps"], counters["updates"], []
        self.updater.changed = [torch.tensor(counters["changed"])]
        self._updated_at, self._pending = state["updated_at"], state.get("pending")
        self.updater.begin_step(self.steps)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_hooks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)  # an optimizer loses its hooks when it is copied: a copy sets its own
        self._hooks = self._hook_in()

    # Around a step of the optimizer

    def _hook_in(self) -> StepHooks:
        take = self._take_step if self.automatic else None
        if isinstance(self.updater, Connections):
            save_dense_state(self.optimizer, self.updater.sparse_layers)
        return StepHooks(self.optimizer, self._before_optimizer_step, self._after_optimizer_step, take)

    def _take_step(self) -> None:
        """Call `step` on behalf of the loop. Without any gradient the optimizer does nothing, and no step counts."""
        if has_gradients(self.optimizer):
            self.step()
        else:
            self._hooks.allow()

    def _repeat_step(self) -> bool:
        """Do again what was done at the first evaluation of the closure in this step of the optimizer."""
        if self._hooks.replaced:
            self._hooks.replace(self.optimizer)
            return True
        self.updater.repeat_step()
        return False

    def _before_optimizer_step(self) -> None:
        self.updater.before_optimizer_step()

    @torch.no_grad()
    def _after_optimizer_step(self) -> None:
        self.updater.after_optimizer_step(self.steps)
        if self._pending is not None and self._update(self._pending):
            self._pending = None
        self._layers.keep_gradients(False)
        self.updater.end_step()

    # An update

    def _update(self, step: int) -> bool:
        """Update the topology. False: a score is not finite (half precision), so the update waits for the next step."""
        done = self.updater.update(UpdatePoint(step, self.schedule.at(step), self.schedule.passed(step)))
        if done:
            self._updated_at = step
            applied = self.updater.applied
            self._uncounted.append(torch.stack(applied).any() if applied else torch.tensor(True))
        if done and self._replicated:
            check_same_connections(self.updater.active, step)
        return done


def _has_sparse_convolutions(model: nn.Module) -> bool:
    return any(isinstance(module, SparseConv2d) for module in model.modules())


def config_from(config: SparsityConfig | None, settings: Mapping[str, Any]) -> SparsityConfig:
    """Return a config as it is, or made of its fields."""
    if config is not None and settings:
        raise InputError("Sparsifier got a SparsityConfig and keywords: pass either of them")
    known = [field.name for field in fields(SparsityConfig)]
    for name in settings:
        if name not in known:
            raise InputError(f"Sparsifier has no setting {name!r}: {did_you_mean(name, known)}")
    return config or SparsityConfig(**settings)
