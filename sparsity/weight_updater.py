"""What the updaters of connections and of straight-through weights share: masks over the layers' own weights."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.inactive_weights import check_zeros
from rigl_compress.sparsity.layer_state import Layer, UpdatePoint
from rigl_compress.sparsity.masked_layers import MaskedLayers


class WeightUpdater:
    """Updates the masks of weights: an `Updater` without its steps."""

    def __init__(self, masked: MaskedLayers) -> None:
        self.changed: list[Tensor] = []
        self.applied: list[Tensor] = []
        self._masked = masked

    @property
    def topology(self) -> Topology:
        """The active connections."""
        return self._masked.topology

    @property
    def active(self) -> Iterator[tuple[str, Tensor]]:
        """The flat positions of the active connections, one layer after the other."""
        return ((layer.name, layer.positions) for layer in self._masked.layers)

    @property
    def sparsity(self) -> float:
        """The share of inactive connections. Raises if their weights are not zero."""
        check_zeros(self._masked.layers)
        return self._masked.sparsity

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """Nothing is trained beside the weights."""
        return {}

    def begin_step(self, step: int) -> None:
        """Do nothing: masks change in updates only."""

    def penalty(self) -> float:
        """Add nothing to the loss."""
        return 0.0

    def observe(self, step: int) -> None:
        """Let the method see the gradients of all weights."""
        self._masked.observe(step)

    def update(self, point: UpdatePoint) -> bool:
        """Change the masks of all layers. Return False if a score is not finite: nothing was changed."""
        planned = self._masked.planned(point)
        if planned is None:
            return False
        self.applied = []
        self.changed = [self._update_layer(layer, point.step, *quota) for layer, quota in planned]
        return True

    def _update_layer(self, layer: Layer, step: int, keep: int, new: int) -> Tensor:
        """Change the mask of a layer; return how many connections became inactive."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do nothing: the network is sparse as it is."""

    def state_dict(self) -> dict[str, Any]:
        """Return the masks and what the method remembers."""
        return {**self._masked.state_dict(), "gates": None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the masks and what the method remembers."""
        self._masked.load_state_dict(state)
