"""Sparse layers of a network in training: the only code that touches their gradients, weights and optimizer state."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.models.mask_kernels import multiply_by_masks
from rigl_compress.models.topology import Topology
from rigl_compress.sparsity.connection_scores import random
from rigl_compress.sparsity.inactive_weights import (
    Version,
    check_parameters,
    check_zeros,
    tensor_versions,
)
from rigl_compress.sparsity.initial_topology import active_positions, warn
from rigl_compress.sparsity.layer_state import Layer, LayerView, UpdatePoint
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.topology_update import score_status


class MaskedLayers:
    """The layers of a network with their masks, and what every method does with them."""

    def __init__(
        self, model: nn.Module, layers: Sequence[Layer], method: Method, optimizer: Optimizer, seed: int
    ) -> None:
        self.layers = list(layers)
        self.method = method
        self.optimizer = optimizer
        self.seed = seed
        self._modules = [model.get_submodule(layer.part.parameter.rpartition(".")[0]) for layer in layers]
        self._weight_versions: list[Version] | None = None  # None: unknown, the next check reads the weights
        self._warned = False  # about layers without a gradient
        self._keeps = False  # gradients of inactive connections

    # The masks

    @property
    def topology(self) -> Topology:
        """The active connections, as a copy."""
        parts: dict[str, list[Tensor]] = {}
        for layer in self.layers:
            parts.setdefault(layer.part.parameter, []).append(layer.mask)
        return Topology({name: torch.cat(each) for name, each in parts.items()})

    @property
    def sparsity(self) -> float:
        """The share of inactive connections; counted without waiting for the device."""
        return 1 - sum(layer.active for layer in self.layers) / sum(layer.size for layer in self.layers)

    def keep_gradients(self, keep: bool) -> None:
        """Keep the gradients of all connections when they are masked: an update that follows the step scores them."""
        self._keeps = keep and self.method.grow not in (None, random)
        for layer in self.layers:
            layer.unmasked = None

    def mask_gradients(self) -> None:
        """Zero the gradients of inactive connections."""
        for layer in self.layers if self._keeps else ():
            layer.unmasked = None if layer.gradient is None else layer.gradient.clone()
        # Zero gradient, zero weight and zero optimizer state stay zero under SGD, Adam and their like.
        masked = [layer for layer in self.layers if layer.masked]
        multiply_by_masks([(gradient, layer.mask) for layer in masked if (gradient := layer.gradient) is not None])

    @torch.no_grad()
    def mask_weights(self) -> None:
        """Zero the weights of inactive connections."""
        multiply_by_masks([(layer.weight, layer.mask) for layer in self.layers if layer.masked])

    # What the method does at every step

    def observe(self, step: int) -> None:
        """Call the method's `observe`, before gradients are masked."""
        if self.method.observe is not None:
            for layer in self.layers:
                if layer.gradient is not None:
                    self.method.observe(self.view(layer, step), layer.memory)

    def constrain(self, step: int) -> None:
        """Call the method's `constrain`, after a step of the optimizer."""
        if self.method.constrain is not None:
            for layer in self.layers:
                self.method.constrain(self.view(layer, step), layer.memory)

    def view(self, layer: Layer, step: int) -> LayerView:
        """Return what scores are functions of."""
        rate = _learning_rate(self.optimizer, layer.parameter) if self.method.observe else 0.0
        return layer.view(self.method.options, self.seed, step, rate)

    def optimizer_state(self, layer: Layer) -> list[Tensor]:
        """Return all optimizer tensors of the shape of the weight: momentum, exp_avg, exp_avg_sq, max_exp_avg_sq, …"""
        values = self.optimizer.state.get(layer.parameter, {}).values()
        shape = layer.parameter.shape
        return [layer.part.of(value) for value in values if torch.is_tensor(value) and value.shape == shape]

    # Changes of the weights by other code

    def check_weights(self) -> bool:
        """Raise if inactive weights are not zero. Return whether the weights were written to since `accept_weights`.

        The weights are read only in that case.
        """
        check_parameters(self.layers, self._modules)
        now = self._versions()
        if now == self._weight_versions:
            return False
        for layer in self.layers:
            layer.follow_weight()
        check_zeros(self.layers)
        self._weight_versions = now
        return True

    def accept_weights(self) -> None:
        """Take the weights as they are now: the next check looks for changes from here on."""
        self._weight_versions = self._versions()

    def _versions(self) -> list[Version]:
        return tensor_versions(layer.parameter for layer in self.layers)

    # An update

    def planned(self, point: UpdatePoint) -> list[tuple[Layer, tuple[int, int]]] | None:
        """Return the layers that an update changes, each with how many connections it keeps and gains.

        None: a score is not finite (half precision), so the update has to wait.
        """
        layers = self._with_gradient()
        quotas = self.method.quota(layers, point)
        if any(sum(quota) != layer.active for layer, quota in zip(layers, quotas, strict=True)):
            # The number of connections is a Python number: where it changes, the device has to confirm the scores.
            status = [score_status(self.method, self.view(layer, point.step), layer.positions) for layer in layers]
            finite, has_signal = torch.stack(status).T.tolist()
            if not all(finite):
                return None
            layers = [layer for layer, each in zip(layers, has_signal, strict=True) if each]
            quotas = self.method.quota(layers, point)
        return [(layer, quota) for layer, quota in zip(layers, quotas, strict=True) if quota != (layer.size, 0)]

    def _with_gradient(self) -> list[Layer]:
        """Return the layers that learn: the others (frozen, or in an unused branch) keep their connections."""
        learning = [layer for layer in self.layers if layer.gradient is not None]
        if not learning:
            raise InputError("no layer has a gradient: call sparse.step() between backward() and optimizer.step()")
        without = [layer.name for layer in self.layers if layer.gradient is None and layer.target < layer.size]
        if without and not self._warned:
            warn([f"{', '.join(without)} had no gradient at a topology update: such layers keep their connections"])
            self._warned = True
        return learning

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the masks and what the method remembers, by layer."""
        return {
            "masks": {layer.name: layer.mask.clone() for layer in self.layers},
            "memory": {layer.name: {key: each.clone() for key, each in layer.memory.items()} for layer in self.layers},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the masks and what the method remembers; the next check reads the weights."""
        for layer in self.layers:
            mask = state["masks"].get(layer.name)
            if mask is None or mask.shape != layer.shape:
                raise InputError(f"the saved masks do not fit layer {layer.name!r}: they belong to another model")
        for layer in self.layers:
            device = layer.parameter.device
            layer.activate(active_positions(state["masks"][layer.name].to(device)))
            layer.memory = {key: value.to(device) for key, value in state["memory"][layer.name].items()}
        self._weight_versions = None


def _learning_rate(optimizer: Optimizer, parameter: nn.Parameter) -> float:
    for group in optimizer.param_groups:
        if any(parameter is other for other in group["params"]):
            return float(group["lr"])
    return 0.0
