"""The removal of dead neurons as a value that can be saved and repeated: what is cut, and which constants are folded.

A prune plan holds shapes alone, so that it can also be applied to fresh weights. Removed inputs of a trained network
can be constants other than zero; a removal has the factors by which their weights go into what stays.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from math import isfinite
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError
from rigl_compress.models.layer_resizing import by_output, folding, gain_bias, resized
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.topology import Topology


@dataclass(frozen=True)
class Fold:
    """Removed constant inputs of a layer: their weights, each times its factor, go into the bias.

    With a `carrier` they go into the weights of that input instead: its constant stands in for theirs.
    """

    layer: str
    inputs: tuple[int, ...]
    factors: tuple[float, ...]
    carrier: int | None = None

    def __post_init__(self) -> None:
        if not self.inputs or len(self.inputs) != len(self.factors) or not all(map(isfinite, self.factors)):
            raise InputError(f"the fold of {self.layer} needs one finite factor per input: it is damaged")

    def into_bias(self, weight: Tensor) -> Tensor:
        """Return what is added to the bias of a layer with a weight [outputs, inputs, …]."""
        matrix = self._weights(weight).reshape(len(weight), len(self.inputs), -1).sum(dim=2)
        return matrix @ torch.tensor(self.factors, dtype=torch.float64)

    def into_carrier(self, weight: Tensor) -> Tensor:
        """Return what is added to the carrier's weights: [outputs, …]."""
        factors = torch.tensor(self.factors, dtype=torch.float64)
        return torch.einsum("oi...,i->o...", self._weights(weight), factors)

    def _weights(self, weight: Tensor) -> Tensor:
        return weight.detach()[:, list(self.inputs)].cpu().double()


@dataclass(frozen=True)
class Removal:
    """One round of removals: the plan, and the folds of layers that lose constant inputs."""

    plan: PrunePlan
    folds: tuple[Fold, ...] = ()

    def __post_init__(self) -> None:
        changes = {change.layer: change for change in self.plan.changes}
        for fold in self.folds:
            change = changes.get(fold.layer)
            if change is None or not _fits(fold, change):
                raise InputError(f"the fold of {fold.layer} does not belong to its prune plan: it is damaged")

    def apply(self, model: nn.Module, topology: Topology) -> tuple[nn.Module, Topology]:
        """Return the smaller network and its topology; the given ones are left as they are."""
        if not self.plan:
            return model, topology
        self.plan.check_fits(model)
        return self.plan.reshape(self._folded(model)), self._smaller(model, topology)

    @torch.no_grad()
    def _folded(self, model: nn.Module) -> nn.Module:
        loaded = deepcopy(model)
        for change in self.plan.changes:
            if change.new_bias:
                gain_bias(loaded.get_submodule(change.layer))
        for fold in self.folds:
            _add(loaded.get_submodule(fold.layer), fold)
        return loaded

    def _smaller(self, model: nn.Module, topology: Topology) -> Topology:
        """Cut the masks as the weights are cut; a carrier has the connections of all that it carries."""
        masks = {name: mask.clone() for name, mask in topology.items()}
        for fold in self.folds:
            _connect(masks, model.get_submodule(fold.layer), fold)
        changes = {change.layer: change for change in self.plan.changes}
        return Topology({name: _cut_mask(model, name, mask, changes) for name, mask in masks.items()})

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"plan": self.plan.to_json(), "folds": [asdict(fold) for fold in self.folds]}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Removal":
        """Read what `to_json` returned."""
        if not isinstance(content, Mapping) or not isinstance(content.get("folds"), list):
            raise InputError("the removal has no plan and folds: it is damaged")
        return cls(PrunePlan.from_json(content["plan"]), tuple(parse(Fold, each, "fold") for each in content["folds"]))


def _fits(fold: Fold, change: LayerChange) -> bool:
    removed = {*change.removed_inputs}
    stays = fold.carrier is None or (0 <= fold.carrier < change.inputs and fold.carrier not in removed)
    return stays and {*fold.inputs} <= removed


def _add(layer: Any, fold: Fold) -> None:
    parameters = dict(layer.named_parameters())
    for weight_name, bias_name in folding(layer):
        weight, bias = by_output(layer, parameters[weight_name]), parameters.get(bias_name)
        if fold.carrier is not None:
            weight[:, fold.carrier] += fold.into_carrier(weight).to(weight)
        elif bias is not None:
            bias.add_(fold.into_bias(weight).to(bias))


def _connect(masks: Mapping[str, Tensor], layer: Any, fold: Fold) -> None:
    """Activate what a fold makes nonzero: the carrier's connections, or a masked bias."""
    for weight_name, bias_name in folding(layer):
        weight, bias = (masks.get(f"{fold.layer}.{name}") for name in (weight_name, bias_name))
        if fold.carrier is not None and weight is not None:
            rows = by_output(layer, weight)
            rows[:, fold.carrier] |= rows[:, list(fold.inputs)].any(dim=1)
        if fold.carrier is None and bias is not None:
            bias |= (fold.into_bias(by_output(layer, attrgetter(weight_name)(layer))) != 0).to(bias.device)


def _cut_mask(model: nn.Module, name: str, mask: Tensor, changes: Mapping[str, LayerChange]) -> Tensor:
    """Return a mask cut like the weight it belongs to."""
    layer = next((layer for layer in changes if name.startswith(f"{layer}.") or not layer), None)
    if layer is None:
        return mask
    parameter = name.removeprefix(f"{layer}.")
    twin = deepcopy(model.get_submodule(layer))
    attrgetter(parameter)(twin).data = mask.to(torch.float32)
    change = changes[layer]
    cut: Tensor = attrgetter(parameter)(resized(twin, change.kept_inputs, change.kept_outputs)).detach()
    return cut != 0
