"""Remove dead neurons from a network: analyse, plan, fold, cut, and look whether it still computes the same."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.errors import InputError
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.resize import folding, resized
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.prune.analysis import Analysis
from rigl_compress.pipeline.prune.graph import Example, trace
from rigl_compress.pipeline.prune.plan import carried, folded, make_plan
from rigl_compress.pipeline.prune.report import PruneReport, make_report
from rigl_compress.pipeline.prune.walk import analyse


@dataclass(frozen=True)
class Pruned:
    """A network without its dead neurons, and how it came about."""

    model: nn.Module
    topology: Topology
    plan: PrunePlan
    report: PruneReport


def prune_dead_neurons(model: nn.Module, topology: Topology, example_input: Example) -> Pruned:
    """Give a smaller network that computes the same in evaluation mode. The model itself is left as it is.

    The topology has to be that of the model: its dead weights are zero.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> masks = {"0.weight": torch.ones(3, 4).bool(), "2.weight": torch.tensor([[True, False, True]] * 2)}
    >>> topology = Topology.from_masks(masks)
    >>> topology.apply_to(model)
    >>> pruned = prune_dead_neurons(model, topology, torch.zeros(1, 4))
    >>> print(pruned.plan)
    0: outputs 3 → 2
    2: inputs 3 → 2
    >>> pruned.report.architecture
    '4-3 → 4-2'
    """
    if not isinstance(topology, Topology):
        raise InputError(
            f"the topology is a {type(topology).__name__}, not a Topology: Topology.from_masks(masks) makes it"
        )
    topology.check_applied(model)
    masked = deepcopy(model)
    masked.zero_grad()
    small, left, plan = masked, Topology.from_masks(topology), PrunePlan()
    while True:  # a second round finds more only where a grouped convolution has lost all groups but one
        found = analyse(trace(small, example_input), left)
        change = make_plan(found)
        if not change:
            break
        small, left, plan = *_cut(small, left, change, found), plan.then(change)
    plan = replace(plan, notes=change.notes)
    return Pruned(small, left, plan, make_report(masked, topology, small, left, plan, example_input))


def _cut(model: nn.Module, topology: Topology, plan: PrunePlan, found: Analysis) -> tuple[nn.Module, Topology]:
    return plan.reshape(_with_constants(model, plan, found)), _smaller(topology, model, plan, found)


@torch.no_grad()
def _with_constants(model: nn.Module, plan: PrunePlan, found: Analysis) -> nn.Module:
    """Put what constant inputs contribute that will go into the biases, or into the kernels of their carriers."""
    loaded = deepcopy(model)
    for change in plan.changes:
        layer: Any = loaded.get_submodule(change.layer)
        if change.new_bias:
            layer.bias = nn.Parameter(layer.weight.new_zeros(change.outputs))
        bias = getattr(layer, folding(layer)[1], None)
        if change.removed_inputs and bias is not None:
            bias.add_(folded(change.layer, found).to(bias))
        if taken := carried(change.layer, found):
            layer.weight[:, taken[0]] += taken[1].to(layer.weight)
    return loaded


def _smaller(topology: Topology, model: nn.Module, plan: PrunePlan, found: Analysis) -> Topology:
    """Cut the masks as the weights are cut; a carrier has the connections of all that it carries."""
    changes = {change.layer: change for change in plan.changes}
    masks = {name: mask.clone() for name, mask in topology.items()}
    for layer in changes:
        if (mask := masks.get(f"{layer}.weight")) is not None and (taken := carried(layer, found)):
            mask[:, taken[0]] |= taken[2].to(mask.device)
        if (mask := masks.get(f"{layer}.bias")) is not None and changes[layer].removed_inputs:
            mask |= (folded(layer, found) != 0).to(mask.device)
    return Topology({name: _cut_mask(model, name, mask, changes) for name, mask in masks.items()})


def _cut_mask(model: nn.Module, name: str, mask: Tensor, changes: Mapping[str, LayerChange]) -> Tensor:
    """Let a layer that holds the mask for a weight be cut."""
    layer, _, parameter = name.rpartition(".")
    if layer not in changes:
        return mask
    twin = deepcopy(model.get_submodule(layer))
    getattr(twin, parameter).data = mask.to(torch.float32)
    change = changes[layer]
    cut: Tensor = getattr(resized(twin, change.kept_inputs, change.kept_outputs), parameter).detach()
    return cut != 0
