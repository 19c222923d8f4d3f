"""Remove dead neurons from a network: analyse, plan, cut, fold, and look whether it still computes the same."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.resize import resized
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.prune.analysis import Analysis, analyse, trace
from rigl_compress.pipeline.prune.plan import carried, folded, make_plan
from rigl_compress.pipeline.prune.report import PruneReport, make_report

Example = Tensor | tuple[Any, ...]


@dataclass(frozen=True)
class Pruned:
    """A network without its dead neurons, and how it came about."""

    model: nn.Module
    topology: Topology
    plan: PrunePlan
    report: PruneReport


def prune_dead_neurons(model: nn.Module, topology: Topology, example_input: Example) -> Pruned:
    """Give a smaller network that computes the same in evaluation mode. The model itself is left as it is.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> masks = {"0.weight": torch.ones(3, 4).bool(), "2.weight": torch.tensor([[True, False, True]] * 2)}
    >>> pruned = prune_dead_neurons(model, Topology.from_masks(masks), torch.zeros(1, 4))
    >>> print(pruned.plan)
    0: outputs 3 → 2
    2: inputs 3 → 2
    >>> pruned.report.architecture
    '4-3 → 4-2'
    """
    topology.check_fits(model)
    masked = deepcopy(model)
    topology.apply_to(masked)
    small, left, plan = masked, topology, PrunePlan()
    while True:  # a second round finds more only where a grouped convolution has lost all groups but one
        again, fewer, change = _round(small, left, example_input)
        if not change:
            break
        small, left, plan = again, fewer, plan.then(change)
    plan = replace(plan, notes=change.notes)
    small.train(model.training)
    return Pruned(small, left, plan, make_report(masked, topology, small, left, plan, example_input))


def _round(model: nn.Module, topology: Topology, example_input: Example) -> tuple[nn.Module, Topology, PrunePlan]:
    found = analyse(trace(model, example_input), topology)
    plan = make_plan(found)
    small = plan.reshape(_with_carriers(model, plan, found))
    with torch.no_grad():
        _fold(small, plan, found)
    return small, _smaller_topology(model, topology, plan, found), plan


@torch.no_grad()
def _with_carriers(model: nn.Module, plan: PrunePlan, found: Analysis) -> nn.Module:
    """Let carriers take over the kernels of the constant inputs that will go."""
    loaded = deepcopy(model)
    for change in plan.changes:
        if taken := carried(change.layer, found):
            weight: Any = loaded.get_submodule(change.layer).weight
            weight[:, taken[0]] += taken[1].to(weight)
    return loaded


def _fold(small: nn.Module, plan: PrunePlan, found: Analysis) -> None:
    """Add what removed constants contributed to the biases."""
    for change in plan.changes:
        layer: Any = small.get_submodule(change.layer)
        weighted = isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
        if weighted and change.removed_inputs and not change.selects and layer.bias is not None:
            extra, kept = folded(change.layer, found), change.kept_outputs
            layer.bias.add_((extra if kept is None else extra[kept]).to(layer.bias))


def _smaller_topology(model: nn.Module, topology: Topology, plan: PrunePlan, found: Analysis) -> Topology:
    """Cut the masks as the weights were cut, by cutting layers that hold masks for weights."""
    changes = {change.layer: change for change in plan.changes}
    masks = {name: mask.clone() for name, mask in topology.items()}
    for layer in changes:
        if (taken := carried(layer, found)) and f"{layer}.weight" in masks:
            masks[f"{layer}.weight"][:, taken[0]] |= taken[2].to(masks[f"{layer}.weight"].device)
    return Topology({name: _cut_mask(model, name, mask, changes) for name, mask in masks.items()})


def _cut_mask(model: nn.Module, name: str, mask: Tensor, changes: dict[str, LayerChange]) -> Tensor:
    layer, _, parameter = name.rpartition(".")
    change = changes.get(layer)
    if change is None:
        return mask.clone()
    twin = deepcopy(model.get_submodule(layer))
    getattr(twin, parameter).data = mask.to(torch.float32)
    cut: Tensor = getattr(resized(twin, change.kept_inputs, change.kept_outputs), parameter).detach()
    return cut != 0
