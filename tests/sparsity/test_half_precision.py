"""Gradients that overflow, as they do in half precision: no choice is made from them, and nothing remembers them."""

from dataclasses import replace
from math import inf, nan

import pytest
import torch
from small_training import Loop, perceptron, sgd

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity import connection_scores as scores
from rigl_compress.sparsity.methods import METHODS, never
from rigl_compress.sparsity.sparsifier import Sparsifier

SPARSE = [name for name, method in METHODS.items() if not (method.dense or method.needs_topology)]
# Structured methods that keep a given share of the units.
SHARES = [name for name, method in METHODS.items() if method.gating and method.gating.chooses != "all"]
UPDATING = [name for name in SPARSE if METHODS[name].when is not never]
MOVING = [name for name in SPARSE if METHODS[name].grow is not None]


@pytest.mark.parametrize("factor", [inf, nan])
@pytest.mark.parametrize("method", SPARSE)
def test_steps_that_overflow_leave_everything_as_it_was(method: str, factor: float) -> None:
    loop = Loop(method=method, interval=1).train(4)
    before, nonzeros, updates = loop.sparse.topology, loop.nonzeros, loop.sparse.updates
    for _ in range(3):
        loop.step(factor)
        assert loop.exact
    assert loop.sparse.topology == before
    assert loop.nonzeros == nonzeros
    assert loop.sparse.updates == updates
    for memory in loop.sparse.state_dict()["memory"].values():
        assert all(value.isfinite().all() for value in memory.values())


@pytest.mark.parametrize("method", MOVING)
def test_the_topology_goes_on_moving_after_an_overflow(method: str) -> None:
    loop = Loop(method=method, interval=1)
    for _ in range(3):
        loop.step(inf)
    loop.train(6)
    before = loop.sparse.topology
    moved = 0
    for _ in range(8):
        loop.step()
        moved += loop.sparse.changed
    assert 0 < before.changed(loop.sparse.topology) <= moved
    assert loop.sparse.topology.active == before.active


@pytest.mark.parametrize("method", UPDATING)
def test_changed_counts_what_really_went(method: str) -> None:
    loop = Loop(method=method, interval=2)
    for _ in range(20):
        before, updates = loop.sparse.topology, loop.sparse.updates
        loop.step()
        if loop.sparse.updates > updates:
            assert loop.sparse.changed == before.changed(loop.sparse.topology)


def test_an_update_from_an_overflow_counts_no_change() -> None:
    loop = Loop()
    assert loop.step(inf)
    assert loop.sparse.changed == 0


def test_snip_chooses_at_the_first_step_that_is_finite() -> None:
    loop, plain = Loop(method="snip"), Loop(method="snip")
    for _ in range(3):
        assert loop.step(inf)  # nothing to take a step from
        assert loop.sparse.sparsity == 0
    assert (loop.sparse.updates, loop.sparse.steps) == (0, 0)
    plain.done = loop.done
    assert loop.step()
    assert plain.step()
    assert loop.sparse.topology == plain.sparse.topology
    assert (loop.sparse.updates, loop.nonzeros) == (1, loop.sparse.topology.active)


def test_dnw_stays_sparse_when_the_scaler_leaves_a_step_out() -> None:
    loop = Loop(method="dnw").train(3)
    unseen = loop.sparse.state_dict()["memory"]["0.weight"]["all_weights"]
    loop.step(inf)
    assert loop.nonzeros == loop.sparse.topology.active
    assert torch.equal(unseen, loop.sparse.state_dict()["memory"]["0.weight"]["all_weights"])
    loop.step()  # inactive weights keep learning
    assert not torch.equal(unseen, loop.sparse.state_dict()["memory"]["0.weight"]["all_weights"])


def test_dnw_with_an_optimizer_that_does_the_scaling_itself() -> None:
    """A fused optimizer is called for every step, and leaves out those that overflowed inside."""
    loop = Loop(method="dnw", make=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, fused=True)).train(3)
    for factor in (inf, 1.0, inf):
        loop.step(factor)
        assert loop.nonzeros == loop.sparse.topology.active


@pytest.mark.parametrize("method", ["pruning", "dsr", "set", "dnw", "deepr"])
def test_no_choice_is_made_from_weights_that_are_not_finite(method: str) -> None:
    loop = Loop(method=method, interval=1).train(3)
    with torch.no_grad():
        loop.model[2].weight[loop.sparse.topology["2.weight"]] = nan  # type: ignore[index]
    # the loss is no number from now on; what was chosen from good weights stays
    before = loop.sparse.topology
    loop.optimizer.zero_grad()
    for _ in range(2):
        loop.loss().backward()
        loop.sparse.step()
        loop.optimizer.step()
    assert loop.sparse.topology["2.weight"].equal(before["2.weight"])


def test_variants_do_not_add_infinity_to_the_weights() -> None:
    loop = Loop(variants=("new-along-gradient", "reset-regrown"), options={"new_weight_scale": 0.1}).train(6)
    before, nonzeros = loop.sparse.topology, loop.nonzeros
    assert loop.step(inf)
    assert loop.sparse.topology == before
    assert loop.nonzeros == nonzeros
    assert all(parameter.isfinite().all() for parameter in loop.model.parameters())


def test_large_scores_are_not_taken_for_an_overflow() -> None:
    """The sum of finite half precision numbers may be infinite."""
    model = perceptron().half()
    optimizer = sgd(model)
    sparse = Sparsifier(model, optimizer, sparsity=0.5, total_steps=10)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3e4) * torch.rand_like(parameter)
    before = sparse.topology
    assert sparse.step()
    assert sparse.changed == before.changed(sparse.topology) > 0


@pytest.mark.parametrize("method", SHARES)
def test_units_are_chosen_at_the_next_finite_step(method: str) -> None:
    loop = Loop(method=method, end=3, sparsity=0.5).train(3)
    gates = loop.sparse.updater.gates
    assert gates is not None
    sound = gates.gating
    gates.gating = replace(sound, score=lambda units: sound.score(units) * nan)
    loop.step()
    assert (loop.sparse.updates, loop.sparse.sparsity) == (0, 0)
    with pytest.raises(InputError, match="not finite: training diverged"):
        loop.sparse.finish()
    gates.gating = sound
    loop.step()
    assert loop.sparse.updates == 1
    assert loop.sparse.sparsity > 0.3


def test_scores_of_zeros_change_nothing() -> None:
    method = replace(METHODS["rigl"], grow=lambda view: scores.gradient(view) * 0)
    loop = Loop(method=method)
    before = loop.sparse.topology
    assert loop.step()
    assert loop.sparse.topology == before
