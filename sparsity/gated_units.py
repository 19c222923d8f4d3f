"""Structured methods: whole units are removed by gates, the connections stay as they are."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.connections import Connections
from rigl_compress.sparsity.initial_topology import active_positions
from rigl_compress.sparsity.layer_state import UpdatePoint
from rigl_compress.sparsity.masked_layers import MaskedLayers
from rigl_compress.sparsity.sparsity_config import SparsityConfig
from rigl_compress.sparsity.structured_methods import Gating
from rigl_compress.sparsity.unit_gates import Gates


class GatedUnits:
    """Updates units: an `Updater`. The weights are handled as those of connections that never change."""

    def __init__(
        self, masked: MaskedLayers, model: nn.Module, gating: Gating, config: SparsityConfig, begin: int
    ) -> None:
        self.applied: list[Tensor] = []
        self.changed: list[Tensor] = []  # units
        self._connections = Connections(masked, lambda _: False)
        self._optimizer = masked.optimizer
        self._begin = begin  # the step from which units are searched
        self._densities, self._density = config.unit_densities(model), 1 - config.sparsity
        self.gates = Gates(model, masked.optimizer, gating, masked.method.options, config.strengths_in(model))

    @property
    def topology(self) -> Topology:
        """The connections of units that have an open gate."""
        masks = dict(self._connections.topology)
        return Topology(masks | {name: masks[name] & mask for name, mask in self.gates.masks().items()})

    @property
    def active(self) -> Iterator[tuple[str, Tensor]]:
        """The flat positions of the active connections, one weight after the other."""
        return ((name, active_positions(mask)) for name, mask in self.topology.items())

    @property
    def sparsity(self) -> float:
        """The share of inactive connections. Waits for the device."""
        return self.topology.sparsity

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What the gates learn."""
        return self.gates.parameters()

    # Every step

    def begin_step(self, step: int) -> None:
        """Start the search for units where it is due."""
        if step >= self._begin:
            self.gates.search()

    def penalty(self) -> Tensor | float:
        """Return the penalty of open gates."""
        return self.gates.penalty()

    def check_weights(self) -> None:
        """Raise if other code made inactive weights other than zero."""
        self._connections.check_weights()

    def observe(self, step: int) -> None:
        """Let the method see the gradients of all weights."""
        self._connections.observe(step)

    def prepare_step(self, in_closure: bool) -> None:
        """Mask the gradients."""
        self._connections.prepare_step(in_closure)

    def repeat_step(self) -> None:
        """Mask the gradients of a closure that is evaluated once more."""
        self._connections.repeat_step()

    def before_optimizer_step(self) -> None:
        """Do nothing: the gradients are masked already."""

    def after_optimizer_step(self, step: int) -> None:
        """Keep inactive weights at zero, and gates in their range."""
        self._connections.after_optimizer_step(step)
        self.gates.constrain(self._optimizer.param_groups[0]["lr"])

    def end_step(self) -> None:
        """Take the weights as they are."""
        self._connections.end_step()

    # An update

    def update(self, point: UpdatePoint) -> bool:
        """Choose the units to keep. Return False if a score is not finite: nothing was changed."""
        del point
        closed = self.gates.choose(self._densities, self._density)
        self.changed = [torch.tensor(closed or 0)]
        return closed is not None

    # The end, and checkpoints

    def finish(self) -> None:
        """Multiply the gates into the weights; where T_end is the end of the run, choose the units first."""
        if not self.gates.chosen and not self.update(UpdatePoint(0, 0.0, 1.0)):
            raise InputError("the weights or gates are not finite: training diverged, lower the learning rate")
        self.gates.fold()
        self.end_step()

    def state_dict(self) -> dict[str, Any]:
        """Return the masks, what the method remembers, and the gates."""
        return {**self._connections.state_dict(), "gates": self.gates.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the masks, what the method remembers, and the gates."""
        self._connections.load_state_dict(state)
        self.gates.load_state_dict(state["gates"])
