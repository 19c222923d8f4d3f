"""What a method changes in a network in training: connections, units, or straight-through weights."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.connections import Connections
from rigl_compress.sparsity.gated_units import GatedUnits
from rigl_compress.sparsity.layer_state import UpdatePoint
from rigl_compress.sparsity.masked_layers import MaskedLayers
from rigl_compress.sparsity.schedules import UpdateSchedule
from rigl_compress.sparsity.sparsity_config import SparsityConfig
from rigl_compress.sparsity.straight_through import StraightThroughWeights


class Updater(Protocol):
    """The part of a sparsifier that depends on what its method updates."""

    applied: list[Tensor]  # one boolean per layer of the last update: the scores could be used; empty: all could
    changed: list[Tensor]  # how many connections (or units) the last update made inactive, in parts

    @property
    def topology(self) -> Topology:
        """The active connections, as a copy."""

    @property
    def active(self) -> Iterator[tuple[str, Tensor]]:
        """The flat positions of the active connections, one layer after the other."""

    @property
    def sparsity(self) -> float:
        """The share of inactive connections."""

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained beside the model's own parameters, by name."""

    def begin_step(self, step: int) -> None:
        """Prepare the model for the forward pass of a step."""

    def penalty(self) -> Tensor | float:
        """Return what is added to the loss."""

    def check_weights(self) -> None:
        """Raise if other code changed weights in a way that does not fit the topology."""

    def observe(self, step: int) -> None:
        """Let the method see the gradients before they are masked."""

    def prepare_step(self, in_closure: bool) -> None:
        """Prepare gradients and weights for a step of the optimizer, which may be evaluating a closure."""

    def repeat_step(self) -> None:
        """Prepare them again: the optimizer evaluates its closure once more in the same step."""

    def before_optimizer_step(self) -> None:
        """Run right before a step of the optimizer."""

    def after_optimizer_step(self, step: int) -> None:
        """Run right after a step of the optimizer, before an update that follows it."""

    def update(self, point: UpdatePoint) -> bool:
        """Update the topology. Return False if a score is not finite: nothing was changed."""

    def end_step(self) -> None:
        """Run when a step and its update are done."""

    def finish(self) -> None:
        """End the training: leave a plain sparse network."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def updater_for(masked: MaskedLayers, model: nn.Module, config: SparsityConfig, schedule: UpdateSchedule) -> Updater:
    """Return the updater of a method."""
    method = masked.method
    if method.gating is not None:
        return GatedUnits(masked, model, method.gating, config, schedule.begin)
    if method.straight_through:
        return StraightThroughWeights(masked)
    return Connections(masked, lambda step: method.when(schedule, step))
