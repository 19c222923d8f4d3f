"""Remove dead neurons from a network: analyse, plan, fold, cut, and check that the outputs are the same."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce

from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.plain_layers import with_plain_layers
from rigl_compress.models.prune_plan import PrunePlan
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.graph_walk import analyse
from rigl_compress.pruning.planning import make_removal
from rigl_compress.pruning.prune_report import Network, PruneReport, make_report
from rigl_compress.pruning.removal import Removal
from rigl_compress.pruning.traced_graph import Example, trace


@dataclass(frozen=True)
class Pruned:
    """A network without its dead neurons, the plan, the report, and the removals that lead from one to the other."""

    model: nn.Module
    topology: Topology
    plan: PrunePlan
    report: PruneReport
    removals: tuple[Removal, ...]


def prune_dead_neurons(model: nn.Module, topology: Topology, example_input: Example) -> Pruned:
    """Return a smaller network that computes the same in evaluation mode. The model itself is left as it is.

    The topology is that of the model: weights of inactive connections are zero. The example is what the network takes:
    a tensor, a tuple of inputs, or a dictionary of inputs by name.

    >>> import torch
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
            f"the topology is a {type(topology).__name__}, expected a Topology: use Topology.from_masks(masks)"
        )
    model = with_plain_layers(model)
    topology.check_applied(model)
    masked = deepcopy(model)
    masked.zero_grad()
    small, left, removals = masked, Topology.from_masks(topology), []
    while True:
        removal = make_removal(analyse(trace(small, example_input), left))
        removals.append(removal)
        before, (small, left) = small, removal.apply(small, left)
        if not _lost_groups(before, small):
            return _measured((masked, topology), (small, left), removals, example_input)


def apply_removals(model: nn.Module, topology: Topology, removals: Sequence[Removal], example_input: Example) -> Pruned:
    """Apply removals that were found before, without analysing the network; outputs are compared as well."""
    model = with_plain_layers(model)
    topology.check_applied(model)
    small, left = model, topology
    for removal in removals:
        small, left = removal.apply(small, left)
    return _measured((model, topology), (small, left), removals, example_input)


def _lost_groups(before: nn.Module, after: nn.Module) -> bool:
    """Whether a grouped convolution has one group left: only then single dead inputs of it can be removed."""
    grouped = {name for name, module in before.named_modules() if getattr(module, "groups", 1) > 1}
    return any(getattr(module, "groups", 0) == 1 for name, module in after.named_modules() if name in grouped)


def _measured(before: Network, after: Network, removals: Sequence[Removal], example: Example) -> Pruned:
    plans = [removal.plan for removal in removals]
    plan = replace(reduce(PrunePlan.then, plans), notes=plans[-1].notes)
    return Pruned(*after, plan, make_report(before, after, plan.notes, example), tuple(removals))
