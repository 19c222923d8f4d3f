"""Every network of `prunable`: the same outputs, once and for all, replayable, ready to be trained and saved."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from exactness import (
    answers,
    difference,
    masked,
    other_inputs,
    prune_dead_neurons,
    pruned_exactly,
    random_topology,
    randomize,
    replayed,
    shapes,
    tensors,
)
from prunable import NETWORKS, Example
from torch import Tensor, fx, nn

from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import Topology
from rigl_compress.pruning.channel_facts import Channels
from rigl_compress.pruning.dead_neurons import Pruned
from rigl_compress.pruning.graph_walk import analyse
from rigl_compress.pruning.traced_graph import trace
from rigl_compress.sparsity.sparsifier import Sparsifier

DRAWS = ((0.8, 1), (0.98, 4))  # sparsity, seed; in the second whole layers die
MORE_DRAWS = tuple((sparsity, seed) for sparsity in (0.0, 0.5, 0.9, 0.97, 0.99) for seed in (11, 12))
# What is kept because it is not understood, and what is said about it; all others are understood.
NOTES = {
    "layer-norm": "1: LayerNorm reads all channels",
    "batch-statistics": "3: normalises by the batch",
    "shared-layer": "b: is used more than once",
    "shared-layer-on-input": "a: is used more than once",
    "shared-batchnorm": "bn: is used more than once",
    "tied-weights": "shares its weights: in 2 places (embedding, readout)",
    "tied-by-function": "embedding: shares its weights",
    "weight-norm": "2: ParametrizedLinear is not supported",
    "hooked": "2: Linear with hooks is not supported",
    "dictionary": "sum_1: sum is not supported",
    "in-place-through-a-view": "sub_: changes a value that is read under another name",
    "in-place-under-a-view": "relu: changes a value that is read under another name",
    "size-as-number": "truediv: combines values whose channels are not all known",
    "squeezed": "squeeze: would also squeeze a single channel",
    "attention": "add: combines values whose channels are not all known",
    "own-parameters": "combines values whose channels are not all known: in 2 places (mul, add)",
    "transformer": "LayerNorm reads all channels: in 2 places (block.norm1, block.norm2)",
    "positions-of-maxima": "max_pool2d_with_indices: max_pool2d_with_indices is not supported",
    "statistics": "pow_1: takes several values, or the states of several cells, at once",
    "axes": "b: reads along another axis than that of the channels",
    "swapped-axes": "b: reads along another axis than that of the channels",
    "batchnorm-on-steps": "bn: works along another axis than that of the channels",
    "gru-state-from-outside": "rnn: hidden units are kept, its initial state is not made of units",
    "lstm-states-together": "transpose: takes several values, or the states of several cells, at once",
    "embedding-max-norm": "e: rescales its vectors (max_norm)",
}
SOMETIMES = {"size-of-another": {"view: only whole rows of its channels can be removed"}}
# Nothing can go from these: all their units are read by something that is not understood, or by the outside.
WHOLE = {
    *("shared-layer", "shared-layer-on-input", "shared-batchnorm", "weight-norm", "hooked", "grouped-on-input"),
    *(
        "in-place-through-a-view",
        "in-place-under-a-view",
        "size-as-number",
        "squeezed",
    ),
    *("positions-of-maxima", "statistics", "swapped-axes", "batchnorm-on-steps"),
}
# Autograd itself refuses these: they change what it has noted.
UNTRAINABLE = ("in-place-late-reader", "in-place-under-a-view")


@dataclass(frozen=True)
class Drawn:
    """A network with random masks and numbers, and what is left of it."""

    name: str
    model: nn.Module
    topology: Topology
    example: Example
    pruned: Pruned


def draw(name: str, sparsity: float, seed: int) -> Drawn:
    """Draw a network and prune it, watching that nothing of it is touched."""
    torch.manual_seed(seed)
    model = randomize(NETWORKS[name].build(), seed)
    topology, example = random_topology(model, sparsity, seed), NETWORKS[name].example()
    before = deepcopy((model.state_dict(), dict(topology), example)), torch.get_rng_state()
    pruned = pruned_exactly(model, topology, example)
    after = (model.state_dict(), dict(topology), example), torch.get_rng_state()
    assert all(torch.equal(one, other) for one, other in zip(tensors(before), tensors(after), strict=True))
    return Drawn(name, model, topology, example, pruned)


@pytest.fixture(scope="module", params=NETWORKS)
def drawn(request: pytest.FixtureRequest) -> list[Drawn]:
    """Each network, drawn several times."""
    return [draw(request.param, *each) for each in DRAWS]


def test_units_go(drawn: list[Drawn]) -> None:
    removed = sum(len(change.removed_outputs) for each in drawn for change in each.pruned.plan.changes)
    assert bool(removed) == (drawn[0].name not in WHOLE)


def test_nothing_is_left_to_remove(drawn: list[Drawn]) -> None:
    check_finished(drawn[-1])


def check_finished(each: Drawn) -> None:
    again = prune_dead_neurons(each.pruned.model, each.pruned.topology, each.example)
    assert not again.plan, str(again.plan)
    assert shapes(again.model) == shapes(each.pruned.model)


def test_the_plan_can_be_replayed(drawn: list[Drawn]) -> None:
    for each in drawn:
        check_replay(each)


def check_replay(each: Drawn) -> None:
    again = replayed(each.model, each.pruned)
    assert difference(answers(again, each.example), answers(each.pruned.model, each.example)) == 0


def test_what_is_kept_is_said(drawn: list[Drawn]) -> None:
    for each in drawn:
        assert each.pruned.report.notes == each.pruned.plan.notes
        assert {NOTES.get(each.name)} <= {*each.pruned.plan.notes, None}
        assert each.name in NOTES or {*each.pruned.plan.notes} <= SOMETIMES.get(each.name, set())


def test_the_topology_fits(drawn: list[Drawn]) -> None:
    for each in drawn:
        left, weights = each.pruned.topology, dict(each.pruned.model.named_parameters())
        assert list(left) == list(each.topology)
        assert all(weights[name].shape == mask.shape and not weights[name][~mask].any() for name, mask in left.items())


def test_nothing_is_shared_with_the_original(drawn: list[Drawn]) -> None:
    for each in drawn:
        theirs = (*each.model.state_dict().values(), *each.topology.values())
        ours = (*each.pruned.model.state_dict().values(), *each.pruned.topology.values())
        assert not {storage(tensor) for tensor in theirs} & {storage(tensor) for tensor in ours}


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of layers that nothing reaches, embeddings, unused branches
def test_it_trains_on(drawn: list[Drawn]) -> None:
    each = drawn[0]
    if each.name in UNTRAINABLE:
        pytest.skip("autograd refuses to train the network itself")
    small = deepcopy(each.pruned.model).train()
    managed = sparse_parameters(small)
    masks = {name: mask for name, mask in each.pruned.topology.items() if name in managed}
    optimizer = torch.optim.SGD(small.parameters(), lr=1e-3)
    sparse = Sparsifier(small, optimizer, topology=Topology(masks), sparsity=0.5, total_steps=10)
    inputs = each.example if isinstance(each.example, tuple) else (each.example,)
    for _ in range(2):
        sum(tensor.double().square().sum() for tensor in tensors(small(*deepcopy(inputs)))).backward()  # type: ignore[union-attr]
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    assert all(not managed[name].detach()[~mask].any() for name, mask in sparse.topology.items())
    assert all(tensor.isfinite().all() for tensor in answers(small, each.example))


class Values(fx.Interpreter):
    """Keeps a copy of every value as it was when it was computed."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph, garbage_collect_values=False)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n] = deepcopy(value)
        return value


def test_what_is_taken_for_constant_is(drawn: list[Drawn]) -> None:
    """Run the analysed graph on other inputs, and look at every channel that has a constant."""
    for each in drawn:
        found = analyse(trace(masked(each.model, each.topology), each.example), each.topology)
        inputs, values = other_inputs(each.example, 5), Values(found.graph.eval())
        with torch.no_grad():
            values.run(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        for node, fact in found.facts.items():
            if isinstance(fact, Channels):
                check_constants(values.seen[node], fact)


def check_constants(value: Tensor, fact: Channels) -> None:
    for channel, constant in zip(value.movedim(fact.axis, 0).double(), fact.constant, strict=True):
        if not constant.isnan():
            torch.testing.assert_close(channel, constant.expand_as(channel), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_more_draws(name: str) -> None:
    for each in MORE_DRAWS:
        drawn = draw(name, *each)
        check_finished(drawn)
        check_replay(drawn)
