"""Bad input: one sentence that says what was found and what helps; and nothing wrong is ever handed out."""

from typing import Any

import pytest
import torch
from exactness import pruned_of
from prunable import Code
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.dead_neurons import prune_dead_neurons


class Branching(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc(x) if x.sum() > 0 else self.fc(-x)
        return result


class Failing(nn.Module):
    """Raises without a word."""

    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


NO_MASKS = Topology({})


@pytest.mark.parametrize(
    ("model", "topology", "example", "found", "cure"),
    [
        (Branching(), NO_MASKS, torch.zeros(1, 4), "Branching cannot be traced", "torch.fx.wrap"),
        (
            Failing(),
            NO_MASKS,
            torch.zeros(1, 4),
            "does not go through Failing (AssertionError)",
            "model(example_input)",
        ),
        (
            perceptron(),
            NO_MASKS,
            torch.zeros(1, 5),
            "shape (1, 5) does not go through Sequential",
            "model(example_input)",
        ),
        (perceptron(), NO_MASKS, (torch.zeros(1, 4), 3), "does not go through Sequential", "model(example_input)"),
        (perceptron(), NO_MASKS, torch.zeros(1, 4).long(), "does not go through Sequential", "model(example_input)"),
        (perceptron(), Topology.full({"0.weight": (3, 5)}), torch.zeros(1, 4), "has shape (3, 5)", "another model"),
        (perceptron(), Topology.full({"1.weight": (3, 4)}), torch.zeros(1, 4), "'1.weight'", "another model"),
    ],
    ids=["branching", "failing", "features", "too-many", "integers", "shape-of-mask", "name-of-mask"],
)
def test_one_sentence(model: nn.Module, topology: Topology, example: Any, found: str, cure: str) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(InputError) as raised:
        prune_dead_neurons(model, topology, example)
    message = str(raised.value)
    assert found in message
    assert cure in message
    assert "\n" not in message
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_masks_that_are_no_topology() -> None:
    masks: Any = {"0.weight": torch.ones(3, 4, dtype=torch.bool)}
    with pytest.raises(
        InputError, match=r"the topology is a dict, expected a Topology: use Topology\.from_masks\(masks\)"
    ):
        prune_dead_neurons(perceptron(), masks, torch.zeros(1, 4))


def behind_its_back(self: Any, x: Tensor) -> Tensor:
    """`+=` on one name of a value: tracing sees a new value, execution changes the old one."""
    h = self.a(x)
    flat = h.view(-1)
    flat += 1.0
    result: Tensor = self.b(F.relu(h))
    return result


def noise(self: Any, x: Tensor) -> Tensor:
    result: Tensor = self.b(F.dropout(F.relu(self.a(x)), 0.5))
    return result


@pytest.mark.parametrize("code", [behind_its_back, noise])
def test_a_network_that_computes_something_else_is_refused(code: Any) -> None:
    torch.manual_seed(0)
    model = Code(code, a=nn.Linear(4, 3), b=nn.Linear(3, 2))
    mask = torch.tensor([[True] * 4, [False] * 4, [True] * 4])
    with pytest.raises(InputError, match=r"has other outputs without its dead neurons \(.*of the largest\)"):
        pruned_of(model, Topology({"a.weight": mask}), torch.randn(16, 4))


def test_not_a_number_is_not_the_same_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    from rigl_compress.pruning import prune_report as report

    nan, one = torch.tensor([torch.nan]), torch.tensor([1.0])
    assert report._difference(nan, nan) == 0
    assert report._difference(nan, one) == report._difference(one, nan) == torch.inf
    infinite = torch.tensor([torch.inf])
    assert report._difference(infinite, infinite) == 0
    assert report._difference(infinite, -infinite) == torch.inf
    assert report._difference(torch.tensor([True]), torch.tensor([False])) == 1
    assert report._difference(torch.zeros(0), torch.zeros(0)) == 0


def test_a_topology_that_the_weights_do_not_have_is_refused() -> None:
    model, mask = perceptron(), torch.tensor([[True, False, True, False]] * 3)
    topology = Topology({"0.weight": mask})
    with pytest.raises(InputError, match=r"'0\.weight' has non-zero weights at inactive .*: .*apply_to\(model\)"):
        prune_dead_neurons(model, topology, torch.zeros(1, 4))
    topology.apply_to(model)
    assert prune_dead_neurons(model, topology, torch.zeros(1, 4)).plan
