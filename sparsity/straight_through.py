"""Straight-through methods: the network computes with the largest weights, the optimizer trains all of them (DNW)."""

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.layer_state import Layer
from rigl_compress.sparsity.masked_layers import MaskedLayers
from rigl_compress.sparsity.topology_update import choose_anywhere
from rigl_compress.sparsity.weight_updater import WeightUpdater

ALL_WEIGHTS = "all_weights"  # the key of a layer's memory that holds the weights without their mask


class StraightThroughWeights(WeightUpdater):
    """Updates the masks of dense weights that are trained as a whole: an `Updater`.

    Between steps the model holds the masked weights. For a step of the optimizer it holds all of them.
    """

    def __init__(self, masked: MaskedLayers) -> None:
        super().__init__(masked)
        self._unmasked = True  # the model holds all weights
        self._remember()
        self.end_step()

    # Every step

    def check_weights(self) -> None:
        """Raise if other code made inactive weights other than zero; take over its changes of active ones."""
        if self._masked.check_weights():
            self._remember()

    def prepare_step(self, in_closure: bool) -> None:
        """Unmask the weights within a closure. Elsewhere that waits: a gradient scaler may leave the step out."""
        if in_closure:
            self._unmask()

    def repeat_step(self) -> None:
        """Raise: a second evaluation of the closure would compute with all weights."""
        name = type(self._masked.optimizer).__name__
        raise InputError(
            f"method {self._masked.method.name!r} needs an optimizer that evaluates its closure once: "
            f"{name} does so several times"
        )

    def before_optimizer_step(self) -> None:
        """Let the optimizer work on all weights."""
        self._unmask()

    def after_optimizer_step(self, step: int) -> None:
        """Remember all weights."""
        self._remember()
        self._masked.constrain(step)

    def end_step(self) -> None:
        """Mask the weights again."""
        self._masked.mask_weights()
        self._unmasked = False
        self._masked.accept_weights()

    # An update

    def _update_layer(self, layer: Layer, step: int, keep: int, new: int) -> Tensor:
        """Choose the weights with the highest scores: the mask changes, the weights do not."""
        before = layer.positions
        layer.activate(choose_anywhere(self._masked.method, self._masked.view(layer, step), before, keep + new))
        return (~layer.mask.view(-1)[before]).sum()

    @torch.no_grad()
    def _unmask(self) -> None:
        self._unmasked = True
        for layer in self._masked.layers:
            layer.weight.copy_(layer.memory[ALL_WEIGHTS])

    @torch.no_grad()
    def _remember(self) -> None:
        for layer in self._masked.layers:
            known = layer.memory.setdefault(ALL_WEIGHTS, layer.weight.clone())
            known.copy_(layer.weight if self._unmasked else torch.where(layer.mask, layer.weight, known))
