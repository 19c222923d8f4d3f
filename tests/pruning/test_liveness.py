"""What is dead, against brute force and the figures of FACTS."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import mean, stdev

import pytest
import strategies  # noqa: F401  (loads the profile)
import torch
from exactness import pruned_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from rigl_compress.models.topology import Topology, connections
from rigl_compress.pruning.dead_neurons import Pruned

LENET = [784, 300, 100, 10]


@st.composite
def chains(draw: st.DrawFn) -> list[Tensor]:
    """Masks of a small perceptron, from nearly empty to nearly full."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=2, max_size=5))
    density = draw(st.sampled_from([0.1, 0.3, 0.6, 0.9]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return [torch.rand(outputs, inputs, generator=random) < density for inputs, outputs in pairwise(sizes)]


def pruned(masks: Sequence[Tensor]) -> Pruned:
    """A perceptron with these masks and random weights and biases, without its dead neurons."""
    torch.manual_seed(0)
    layers = [nn.Linear(mask.shape[1], mask.shape[0]) for mask in masks]
    model = nn.Sequential(*(module for layer in layers for module in (layer, nn.ReLU())))[:-1]
    topology = Topology.from_masks({f"{2 * index}.weight": mask for index, mask in enumerate(masks)})
    return pruned_of(model, topology, torch.zeros(1, masks[0].shape[1]))


def live_units(masks: Sequence[Tensor]) -> list[Tensor]:
    """Which units stay: inputs, hidden layers, outputs."""
    changes = {change.layer: change for change in pruned(masks).plan.changes}
    live = [torch.ones(size, dtype=torch.bool) for size in [masks[0].shape[1], *(len(mask) for mask in masks)]]
    if "0" in changes:
        live[0][list(changes["0"].removed_inputs)] = False
    for index in range(len(masks)):
        if (change := changes.get(str(2 * index))) is not None:
            live[index + 1][list(change.removed_outputs)] = False
    return live


def at_least_one(units: Tensor) -> Tensor:
    """A layer never loses all its units: the first one stays, as a constant."""
    return units if units.any() else torch.arange(len(units)) == 0


def by_paths(masks: Sequence[Tensor]) -> list[list[bool]]:
    """Brute force: a hidden unit lives when it is on a path from an input to an output, an input when on any path."""
    matrices = [mask.double() for mask in masks]
    sizes = [masks[0].shape[1], *(mask.shape[0] for mask in masks)]
    live = []
    for boundary, size in enumerate(sizes):
        into = torch.eye(size, dtype=torch.float64)  # paths from the inputs to this boundary
        for matrix in reversed(matrices[:boundary]):
            into = into @ matrix
        out = torch.eye(size, dtype=torch.float64)  # paths from this boundary to the outputs
        for matrix in matrices[boundary:]:
            out = matrix @ out
        reached, heard = (into.sum(dim=1) > 0), (out.sum(dim=0) > 0)
        live.append(torch.ones(size, dtype=torch.bool) if boundary == len(masks) else at_least_one(reached & heard))
    return [units.tolist() for units in live]


@given(chains())
def test_living_is_being_on_a_path_from_input_to_output(masks: list[Tensor]) -> None:
    assert [units.tolist() for units in live_units(masks)] == by_paths(masks)


@given(chains())
def test_the_outputs_stay_the_same(masks: list[Tensor]) -> None:
    assert pruned(masks).report.relative_difference < 1e-5


def test_death_spreads_in_both_directions() -> None:
    """Hidden unit 1 of the first layer has no input: its listener has no other, so that one's input dies too."""
    first = torch.tensor([[True, False, False], [False, False, False]])
    second = torch.tensor([[True, False], [False, True]])
    third = torch.tensor([[True, True]])
    assert [units.tolist() for units in live_units([first, second, third])] == [
        [True, False, False],
        [True, False],
        [True, False],
        [True],
    ]


def test_a_single_layer() -> None:
    live = live_units([torch.tensor([[True, False], [False, False]])])
    assert [units.tolist() for units in live] == [[True, False], [True, True]]


# The figures of FACTS (3.2): LeNet-300-100 with random masks


def random_masks(sparsities: Sequence[float], seed: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    masks = []
    for inputs, outputs, sparsity in zip(LENET[:-1], LENET[1:], sparsities, strict=True):
        mask = torch.zeros(outputs * inputs, dtype=torch.bool)
        mask[torch.randperm(len(mask), generator=random)[: connections(1 - sparsity, len(mask))]] = True
        masks.append(mask.reshape(outputs, inputs))
    return masks


def architecture(masks: Sequence[Tensor]) -> list[int]:
    return [int(units.sum()) for units in live_units(masks)]


def one_pass(masks: Sequence[Tensor]) -> list[int]:
    """The authors' rule: forwards, once, keep a unit with something before it and something behind it."""
    kept = [masks[0].any(dim=0)]
    for mask, following in pairwise(masks):
        kept.append((mask & kept[-1]).any(dim=1) & following.any(dim=0))
    return [int(units.sum()) for units in kept]


def means_and_deviations(found: list[list[int]]) -> tuple[list[float], list[float]]:
    columns = list(zip(*found, strict=True))
    return [mean(column) for column in columns], [stdev(column) for column in columns]


@pytest.mark.parametrize(
    ("rule", "sparsities", "expected", "printed"),
    [
        (architecture, (0.998, 0.99, 0.9), (196.4, 114.6, 59.6), (191, 112, 54)),
        (one_pass, (0.998, 0.99, 0.9), (354.7, 151.2, 59.6), (359, 150, 54)),
        (architecture, (0.99, 0.891, 0.0), (745.5, 299.9, 100), (747, 299, 100)),
        (one_pass, (0.99, 0.891, 0.0), (745.5, 299.9, 100), (747, 299, 100)),
    ],
)
def test_random_masks_of_lenet(
    rule: Callable[[Sequence[Tensor]], list[int]],
    sparsities: tuple[float, ...],
    expected: tuple[float, ...],
    printed: tuple[int, ...],
) -> None:
    """Means over 20 seeds; what FACTS prints is one draw, within three standard deviations of them."""
    means, deviations = means_and_deviations([rule(random_masks(sparsities, seed)) for seed in range(20)])
    for found, deviation, usual, draw in zip(means, deviations, expected, printed, strict=False):
        assert found == pytest.approx(usual, abs=0.1 + 3 * deviation / 20**0.5)
        assert draw == pytest.approx(found, abs=3 * deviation + 1e-9)


def test_at_the_sparsities_of_the_paper_one_pass_is_enough() -> None:
    masks = [random_masks((0.99, 0.891, 0.0), seed) for seed in range(20)]
    assert all(architecture(each)[:-1] == one_pass(each) for each in masks)
