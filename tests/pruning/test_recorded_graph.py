"""Networks whose code cannot be traced symbolically are recorded in a run: the same nodes, the same result."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from exactness import answers, difference, masked, pruned_exactly, random_topology, randomize
from prunable import NETWORKS, Code
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import Topology
from rigl_compress.pruning import traced_graph
from rigl_compress.pruning.dead_neurons import prune_dead_neurons
from rigl_compress.pruning.recorded_graph import recorded


def targets(code: Callable[..., Any], *inputs: Tensor, **layers: nn.Module) -> list[Any]:
    """What is called, in order."""
    graph = recorded(Code(code, **layers).eval(), inputs, {})
    return [node.target for node in graph.graph.nodes if node.op.startswith("call")]


X = torch.linspace(-1, 1, 12).reshape(3, 4)
SPELLINGS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "sum": (lambda self, x: x + x, ["add"]),
    "exchanged": (lambda self, x: 1 - x, [operator.sub]),
    "quotient": (lambda self, x: 1 / x, [operator.truediv]),
    "product": (lambda self, x: x @ x.transpose(0, 1), ["transpose", "matmul"]),
    "method": (lambda self, x: x.relu(), ["relu"]),
    "function": (lambda self, x: torch.relu(F.gelu(x)), [F.gelu, torch.relu]),
    "attribute": (lambda self, x: x.mT, [getattr]),
    "parts": (lambda self, x: x.chunk(2, 1)[1], ["chunk", operator.getitem, operator.getitem]),
    "layer": (lambda self, x: F.dropout(self.fc(x), 0.5, False), ["fc"]),  # dropout does nothing here
    "sizes": (lambda self, x: x.view(x.shape[0], x.size(1)), ["view"]),
    "new": (lambda self, x: x + torch.ones(4), [torch.ones, "add"]),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_nodes_have_the_names_of_a_symbolic_trace(name: str) -> None:
    code, expected = SPELLINGS[name]
    assert targets(code, X, fc=nn.Linear(4, 4)) == expected


def test_sides_are_exchanged() -> None:
    graph = recorded(Code(lambda self, x: 2 - x), (X,), {}).graph
    (node,) = (node for node in graph.nodes if node.target is operator.sub)
    assert node.args[0] == 2
    assert isinstance(node.args[1], fx.Node)


def test_modules_are_left_as_they_were() -> None:
    call = nn.Module.__call__
    with pytest.raises(RuntimeError):
        recorded(nn.Sequential(nn.Linear(3, 2)), (X,), {})
    assert nn.Module.__call__ is call


# The same result as from a symbolic trace, wherever no size is rewritten

UNLIKE = {"size-as-number", "size-of-another", "statistics"}  # they compute with sizes, or read values


ALIKE = [name for name in NETWORKS if name not in UNLIKE]


@pytest.mark.parametrize("name", ALIKE[::4])
def test_a_recording_prunes_like_a_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_alike(name, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_every_recording_prunes_like_a_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_alike(name, monkeypatch)


def check_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomize(NETWORKS[name].build(), 1)
    topology, example = random_topology(model, 0.8, 1), NETWORKS[name].example()
    expected = pruned_exactly(model, topology, example)
    monkeypatch.setattr(traced_graph, "_symbolic", lambda model, example: None)
    found = pruned_exactly(model, topology, example)
    assert not found.plan.sizes
    written = any("recorded run" in note for note in found.plan.notes)
    assert written or found.plan.changes == expected.plan.changes


def test_a_formula_with_the_number_of_channels_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_graph, "_symbolic", lambda model, example: None)
    for name, message in (("size-as-number", "has other outputs"), ("size-of-another", "does not run")):
        torch.manual_seed(0)
        model = randomize(NETWORKS[name].build(), 0)
        topology = random_topology(model, 0.5, 0)
        with pytest.raises(InputError, match=message):
            prune_dead_neurons(masked(model, topology), topology, NETWORKS[name].example())


# Inputs and outputs


@dataclass
class Answer:
    scores: Tensor
    hidden: dict[str, Tensor]


class Told(nn.Module):
    """Takes tokens by name, branches on them, and gives a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.first, self.second = nn.Embedding(9, 6), nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, *, tokens: Tensor, mask: Tensor | None = None) -> Answer:
        x = self.embedding(tokens)
        if mask is not None and not bool(mask.all()):
            x = x * mask[..., None]
        hidden = F.silu(self.first(x))
        return Answer(self.second(hidden), {"x": x})


def test_keyword_inputs_and_dataclass_outputs() -> None:
    model = randomize(Told(), 0)
    alive = torch.ones(8, 6, dtype=torch.bool)
    alive[[1, 5]] = False
    topology = Topology.from_masks({"first.weight": alive})
    before = masked(model, topology)
    example = {"tokens": torch.randint(0, 9, (2, 4)), "mask": torch.ones(2, 4, dtype=torch.long)}
    pruned = prune_dead_neurons(before, topology, example)
    left: Any = pruned.model
    assert left.first.out_features == 6
    assert pruned.report.after.flops < pruned.report.before.flops
    for mask in (None, torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])):
        one, other = (network.eval()(tokens=example["tokens"], mask=mask) for network in (before, left))
        torch.testing.assert_close(one.scores, other.scores)
        torch.testing.assert_close(one.hidden["x"], other.hidden["x"])


def test_missing_keyword() -> None:
    with pytest.raises(InputError, match="does not go through Told"):
        prune_dead_neurons(Told(), Topology({}), {"token": torch.zeros(1, 4).long()})


@pytest.mark.parametrize(
    "read", [lambda h: float(h.sum()), lambda h: h.sum().item(), lambda h: h.tolist(), lambda h: bool((h > 0).any())]
)
def test_a_branch_on_values_is_an_error(read: Callable[[Tensor], Any]) -> None:
    def code(self: Any, x: Tensor) -> Tensor:
        h = self.fc(x)
        result: Tensor = self.out(h if read(h) else -h)
        return result

    model = Code(code, fc=nn.Linear(4, 3), out=nn.Linear(3, 2))
    with pytest.raises(InputError, match=r"cannot be traced .* depends on the input"):
        prune_dead_neurons(model, Topology({}), X)


def written_into(self: Any, x: Tensor) -> Tensor:
    h = F.relu(self.first(x))
    h[:, 0] = 1.0
    result: Tensor = self.second(h)
    return result


def written_under_a_view(self: Any, x: Tensor) -> Tensor:
    h = F.relu(self.first(x))
    view = h.view(-1)
    view[0] = 3.0
    result: Tensor = self.second(h)
    return result


@pytest.mark.parametrize("code", [written_into, written_under_a_view])
def test_values_that_are_written_into_are_kept(code: Any) -> None:
    """Assignments cannot be traced symbolically."""
    model = randomize(Code(code, first=nn.Linear(4, 6), second=nn.Linear(6, 2)), 0)
    alive = torch.ones(6, 4, dtype=torch.bool)
    alive[:3] = False
    topology = Topology.from_masks({"first.weight": alive})
    pruned = pruned_exactly(model, topology, X)
    left: Any = pruned.model
    assert left.first.out_features == 6
    assert pruned.plan.notes
    assert difference(answers(masked(model, topology), X * 2), answers(left, X * 2)) < 1e-5
