"""Removals as values: saved, read and applied again they lead to the same network, folded constants included."""

import json

import pytest
import torch
from exactness import answers, difference, masked, pruned_exactly, shapes
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.prune_plan import LayerChange, PrunePlan
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import apply_removals
from rigl_compress.pruning.removal import Fold, Removal

PLAN = PrunePlan((LayerChange("2", 4, 3, removed_inputs=(1, 2)),))


def perceptron() -> tuple[nn.Module, Topology, Tensor]:
    """Two neurons have no inputs: their biases go into the next layer's, which has none yet."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False))
    mask = torch.ones(4, 5).bool()
    mask[1:3] = False
    return model, Topology.from_masks({"0.weight": mask}), torch.rand(2, 5)


def padded() -> tuple[nn.Module, Topology, Tensor]:
    """Two channels have no inputs; behind zero padding one of them carries the weights of the other."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Conv2d(4, 3, 3, padding=1))
    masks = {"0.weight": torch.ones(4, 2, 3, 3).bool(), "2.weight": torch.rand(3, 4, 3, 3) < 0.5}
    masks["0.weight"][1:3] = False
    return model, Topology.from_masks(masks), torch.rand(2, 2, 6, 6)


@pytest.mark.parametrize(("network", "carries"), [(perceptron, False), (padded, True)])
def test_repeated_from_json(network: object, carries: bool) -> None:
    assert callable(network)
    torch.manual_seed(0)
    model, topology, example = network()
    pruned = pruned_exactly(model, topology, example)
    (fold,) = pruned.removals[0].folds
    assert (fold.layer, fold.carrier is not None) == ("2", carries)
    content = json.loads(json.dumps([each.to_json() for each in pruned.removals]))
    removals = [Removal.from_json(each) for each in content]
    assert tuple(removals) == pruned.removals
    again = apply_removals(masked(model, topology), topology, removals, example)
    assert shapes(again.model) == shapes(pruned.model)
    assert difference(answers(again.model, example), answers(pruned.model, example)) == 0
    assert (again.topology, again.plan, again.report) == (pruned.topology, pruned.plan, pruned.report)


def test_the_fold_is_what_keeps_the_outputs() -> None:
    torch.manual_seed(0)
    model, topology, example = perceptron()
    (removal,) = pruned_exactly(model, topology, example).removals
    with pytest.raises(InputError, match="other outputs"):
        apply_removals(masked(model, topology), topology, [Removal(removal.plan)], example)


@pytest.mark.parametrize(
    "fold",
    [
        Fold("0", (1,), (0.5,)),  # of a layer that the plan does not change
        Fold("2", (0,), (0.5,)),  # of an input that stays
        Fold("2", (1,), (0.5,), carrier=2),  # into an input that goes
        Fold("2", (1,), (0.5,), carrier=9),  # into an input that is not there
    ],
)
def test_a_fold_that_does_not_belong_to_the_plan(fold: Fold) -> None:
    assert Removal(PLAN, (Fold("2", (1,), (0.5,), carrier=0),))
    with pytest.raises(InputError, match="does not belong"):
        Removal(PLAN, (fold,))


@pytest.mark.parametrize(("inputs", "factors"), [((), ()), ((1,), ()), ((1,), (float("nan"),))])
def test_a_fold_needs_a_finite_factor_per_input(inputs: tuple[int, ...], factors: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="one finite factor"):
        Fold("2", inputs, factors)
