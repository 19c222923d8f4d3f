"""Methods that change connections: inactive ones have no weight, no gradient and no optimizer state."""

from collections.abc import Callable

import torch
from torch import Tensor

from rigl_compress.core.tensor_blocks import mask_in_place
from rigl_compress.models.training_kernels import matched
from rigl_compress.sparsity.connection_scores import gradient
from rigl_compress.sparsity.layer_state import Layer, LayerView
from rigl_compress.sparsity.masked_layers import MaskedLayers
from rigl_compress.sparsity.rewire import mask_of
from rigl_compress.sparsity.sparse_growth import choose_moves
from rigl_compress.sparsity.sparse_layer import SparseLayer
from rigl_compress.sparsity.topology_update import Rewiring, choose
from rigl_compress.sparsity.weight_updater import WeightUpdater


class Connections(WeightUpdater):
    """Updates connections: an `Updater`."""

    def __init__(self, masked: MaskedLayers, due: Callable[[int], bool]) -> None:
        super().__init__(masked)
        self._due = due  # whether there is an update at a step
        self.sparse_layers = [layer for layer in masked.layers if isinstance(layer, SparseLayer)]
        masked.mask_weights()
        masked.accept_weights()

    # Every step

    def check_weights(self) -> None:
        """Raise if other code made inactive weights other than zero."""
        self._masked.check_weights()

    def begin_step(self, step: int) -> None:
        """Let sparse layers record what growth needs, where an update is due."""
        for layer in self.sparse_layers:
            layer.module.recording = self._masked.method.grow is gradient and self._due(step)

    def prepare_step(self, in_closure: bool) -> None:
        """Mask the gradients."""
        del in_closure
        self._masked.mask_gradients()

    def repeat_step(self) -> None:
        """Mask the gradients of a closure that is evaluated once more."""
        self._masked.mask_gradients()

    def before_optimizer_step(self) -> None:
        """Take the active part of optimizer state that was loaded in dense form; gradients are masked already."""
        for layer in self.sparse_layers:
            layer.gather_state(self._masked.optimizer)

    def after_optimizer_step(self, step: int) -> None:
        """Zero the inactive weights: optimizer state from before, or other code, may have changed them."""
        self._masked.mask_weights()
        self._masked.constrain(step)

    def end_step(self) -> None:
        """Take the weights as they are."""
        for layer in self.sparse_layers:
            layer.module.recorded = []
        self._masked.accept_weights()

    def finish(self) -> None:
        """Turn sparse layers into plain ones with dense weights."""
        for layer in self.sparse_layers:
            layer.finish(self._masked.optimizer)
        self._masked.layers = [_masked_again(layer) for layer in self._masked.layers]
        self.sparse_layers = []
        self._masked.accept_weights()

    # An update

    def _update_layer(self, layer: Layer, step: int, keep: int, new: int) -> Tensor:
        """Drop and grow connections of a layer; return how many became inactive."""
        if isinstance(layer, SparseLayer):
            return self._update_sparse(layer, step, keep, new)
        view, before = self._masked.view(layer, step), layer.positions
        rewiring = choose(self._masked.method, view, before, keep, new)
        self._reset(layer, view, rewiring)
        self.applied.append(rewiring.usable)
        layer.activate(rewiring.positions)
        return (~layer.mask.view(-1)[before]).sum()

    def _update_sparse(self, layer: SparseLayer, step: int, keep: int, new: int) -> Tensor:
        """Drop and grow connections of a sparse layer: their optimizer state moves along."""
        moves = choose_moves(self._masked.method, layer.sparse_view(self._masked.seed, step), keep, new)
        self.applied.append(torch.tensor(moves is not None))
        if moves is None:
            return torch.tensor(0)
        stayed = (matched(layer.positions, moves.positions) >= 0).sum()
        before = layer.active
        layer.move(moves.positions, moves.origins, [layer.parameter.data, *self._masked.optimizer_state(layer)])
        return before - stayed

    def _reset(self, layer: Layer, view: LayerView, rewiring: Rewiring) -> None:
        """Zero the weights and the optimizer state of all connections that were dropped or are new."""
        method, survivors = self._masked.method, rewiring.survivors
        new_weights = None if method.new_weights is None else method.new_weights(view)
        for tensor in (layer.weight, *self._masked.optimizer_state(layer)):
            mask_in_place(tensor, survivors)
        for key in method.connection_memory:
            layer.memory[key].mul_(survivors)
        if new_weights is not None:
            new = mask_of(rewiring.positions, layer.mask.shape) & ~survivors
            layer.weight.copy_(new_weights.where(new, layer.weight))


def _masked_again(layer: Layer) -> Layer:
    """Return the masked layer of one that was sparse until now."""
    if not isinstance(layer, SparseLayer):
        return layer
    dense = Layer.empty(layer.name, layer.parameter, layer.part, layer.target)
    dense.activate(layer.former)
    return dense
