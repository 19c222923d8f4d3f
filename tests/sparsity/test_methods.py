"""Every registered method keeps the promises of its kind; each one does what its name says."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_training import take_step
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import connections
from rigl_compress.sparsity.connection_quotas import by_momentum, share_whole, weakest_anywhere
from rigl_compress.sparsity.method_variants import VARIANTS, find_method
from rigl_compress.sparsity.methods import METHODS, Method, never
from rigl_compress.sparsity.schedules import pruned_density
from rigl_compress.sparsity.sparsifier import Sparsifier

REDISTRIBUTING = (by_momentum, weakest_anywhere)  # quotas that move connections between layers
SPARSITY, STEPS = 0.7, 60


class Trial:
    """A small network that learns, and what can be seen of it from outside."""

    def __init__(self, method: str | Method, **settings: object) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4))
        self.first = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        chosen = {"sparsity": SPARSITY, "total_steps": STEPS, "interval": 5, **settings}
        if isinstance(method, str) and METHODS[method].needs_topology:
            chosen["topology"] = Trial("static").begin
        self.sparse = Sparsifier(self.model, self.optimizer, method=method, **chosen)
        self.begin = self.sparse.topology
        self.losses: list[float] = []

    def train(self, count: int) -> "Trial":
        for x, y in batches(count, len(self.losses)):
            self.losses.append(take_step(self.sparse, self.optimizer, F.cross_entropy(self.model(x), y)))
        return self

    @property
    def weights(self) -> dict[str, Tensor]:
        parameters = dict(self.model.named_parameters())
        return {name: parameters[name].detach() for name in self.sparse.topology}


def batches(count: int, begin: int) -> Iterator[tuple[Tensor, Tensor]]:
    for index in range(begin, begin + count):
        x = torch.randn(64, 12, generator=torch.Generator().manual_seed(index))
        yield x, x[:, :4].argmax(dim=1)


@pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if method.gating is None and not method.narrow]
)
def test_conformance(method: str) -> None:
    trial, twin = Trial(method).train(STEPS), Trial(method).train(STEPS)
    end = trial.sparse.topology
    # dead weights are exactly zero
    assert all(not trial.weights[name][~mask].any() for name, mask in end.items())
    # the budget is met in the end: per layer, or over all where the method moves connections between layers
    target = {name: connections(d, end[name].numel()) for name, d in trial.sparse.config.densities(trial.model).items()}
    found = {layer.name: layer.active for layer in end.layers}
    if METHODS[method].quota not in REDISTRIBUTING:
        assert found == target
    assert sum(found.values()) == sum(target.values())
    assert trial.sparse.sparsity == pytest.approx(end.sparsity)
    # the topology moves or stands still, as it should
    assert (end != trial.begin) == (METHODS[method].when is not never)
    # it learns, and does so again in the same way
    assert trial.losses[-1] < 0.75 * trial.losses[0]
    assert end == twin.sparse.topology
    assert all(torch.equal(trial.weights[name], twin.weights[name]) for name in end)
    # its cost is known
    assert METHODS[method].cost is not None


def test_snip_keeps_the_connections_of_the_highest_saliency() -> None:
    trial = Trial("snip")
    assert trial.begin.sparsity == 0
    x, y = next(batches(1, 0))
    F.cross_entropy(trial.model(x), y).backward()
    weight = trial.model[2].weight
    saliency = (weight.detach() * weight.grad).abs()  # type: ignore[union-attr, operator]
    assert trial.sparse.step()  # in the place of the first step
    kept = trial.sparse.topology["2.weight"]
    assert saliency[kept].min() >= saliency[~kept].max()
    assert not trial.sparse.update_due


def test_pruning_follows_the_cubic_schedule() -> None:
    trial = Trial("pruning", begin=10, end=40, interval=10)
    found = []
    for _ in range(6):
        trial.train(10)
        found.append(trial.sparse.topology.layers[1].active)
    target = connections(trial.sparse.config.densities(trial.model)["2.weight"], 600)
    curve = [connections(pruned_density(passed, target / 600), 600) for passed in (0, 1 / 3, 2 / 3, 1)]
    assert found == [600, curve[0], curve[1], curve[2], curve[3], target]


def test_pruning_reaches_its_target_though_the_interval_does_not_divide_the_schedule() -> None:
    trial = Trial("pruning", begin=0, end=33, interval=10).train(40)
    densities = trial.sparse.config.densities(trial.model)
    assert trial.sparse.topology.layers[0].active == connections(densities["0.weight"], 360)


def test_set_grows_elsewhere_than_rigl() -> None:
    assert Trial("set").train(30).sparse.topology != Trial("rigl").train(30).sparse.topology


def test_snfs_remembers_the_dense_gradient_in_places_without_connections() -> None:
    trial = Trial("snfs", options={"momentum": 0.5})
    x, y = next(batches(1, 0))
    F.cross_entropy(trial.model(x), y).backward()
    gradient = trial.model[2].weight.grad.clone()  # type: ignore[union-attr, operator]
    trial.sparse.step()
    momentum = trial.sparse.state_dict()["memory"]["2.weight"]["momentum"]
    assert torch.allclose(momentum, 0.5 * gradient)
    assert momentum[~trial.begin["2.weight"]].any()


def test_dsr_moves_connections_between_layers() -> None:
    trial = Trial("dsr").train(STEPS)
    before, after = ([layer.active for layer in t.layers] for t in (trial.begin, trial.sparse.topology))
    assert before != after
    assert sum(before) == sum(after)


@pytest.mark.parametrize("interval", [1, 7, 1000])
def test_no_connection_of_deepr_ever_has_the_sign_it_was_not_given(interval: int) -> None:
    trial = Trial("deepr", interval=interval, end=STEPS)
    crossed = 0
    for _ in range(STEPS):
        trial.train(1)
        for name, memory in trial.sparse.state_dict()["memory"].items():
            assert (trial.weights[name] * memory["sign"] >= 0).all()
            assert not trial.weights[name][memory["crossed"]].any()
            assert not memory["crossed"][~trial.sparse.topology[name]].any()
            crossed += int(memory["crossed"].sum())
    assert (crossed > 0) == (interval > 1)  # they wait for the next update
    assert (trial.sparse.topology != trial.begin) == (interval < 1000)


def test_deepr_replaces_exactly_the_connections_that_crossed_zero() -> None:
    trial = Trial("deepr", interval=10, end=STEPS).train(20)
    before, memory = trial.sparse.topology, trial.sparse.state_dict()["memory"]
    weights = {name: weight.clone() for name, weight in trial.weights.items()}
    assert any(each["crossed"].any() for each in memory.values())
    trial.optimizer.param_groups[0]["lr"] = 0.0
    trial.train(1)
    for name, mask in trial.sparse.topology.items():
        standing = before[name] & ~memory[name]["crossed"]
        assert (mask | ~standing).all()
        assert torch.equal(trial.weights[name], weights[name] * standing)


def test_deepr_draws_a_new_sign_for_every_new_connection() -> None:
    """In a full layer a connection that crossed zero is redrawn where it was: its sign is as good as any."""
    trial, seen = Trial("deepr", interval=1, end=STEPS, layers={"2": 0.0}), []
    for _ in range(STEPS):
        before = trial.sparse.state_dict()["memory"]["2.weight"].get("sign")
        trial.train(1)
        now = trial.sparse.state_dict()["memory"]["2.weight"]["sign"]
        born = torch.zeros(0) if before is None else now[(before == 0) & (now != 0)]
        seen += born.tolist()
    assert len(seen) > 20
    assert 0.2 < sum(sign > 0 for sign in seen) / len(seen) < 0.8


def test_deepr_walks_at_random() -> None:
    cold, hot = (Trial("deepr", options={"temperature": heat, "l1": 0.0}).train(3) for heat in (0.0, 1e-4))
    assert not torch.allclose(cold.weights["0.weight"], hot.weights["0.weight"], atol=1e-4)


def test_dnw_computes_with_the_largest_weights_and_trains_all() -> None:
    trial = Trial("dnw").train(30)
    unseen = trial.sparse.state_dict()["memory"]
    moved = 0
    for name, mask in trial.sparse.topology.items():
        every = unseen[name]["all_weights"]
        if mask.all():
            continue
        assert every[mask].abs().min() >= every[~mask].abs().max()
        assert torch.equal(trial.weights[name], every * mask)
        dead = ~mask & ~trial.begin[name]
        moved += int((every[dead] != trial.first[name][dead]).sum())
    assert moved > 100  # weights that never were seen have learned


def test_static_never_updates() -> None:
    trial = Trial("static").train(STEPS)
    assert (trial.sparse.updates, trial.sparse.steps) == (0, STEPS)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_variants_of_rigl_keep_the_count(variant: str) -> None:
    trial, plain = Trial("rigl", variants=(variant,)).train(STEPS), Trial("rigl").train(STEPS)
    assert [layer.active for layer in trial.sparse.topology.layers] == [layer.active for layer in trial.begin.layers]
    assert any(not torch.equal(trial.weights[name], plain.weights[name]) for name in plain.weights)


def test_step_and_update_takes_every_step() -> None:
    trial = Trial("rigl", variants=("step-and-update",)).train(STEPS)
    assert trial.sparse.steps == STEPS
    assert trial.sparse.updates > 0


def test_step_and_update_grows_where_the_gradient_is_largest() -> None:
    """The optimizer needs masked gradients, the update that follows it those of all connections."""
    trial = Trial("rigl", variants=("step-and-update",), begin=5).train(5)
    (x, y), before = next(batches(1, 5)), trial.sparse.topology
    F.cross_entropy(trial.model(x), y).backward()
    gradients = {name: trial.model.get_parameter(name).grad.abs() for name in before}
    assert not trial.sparse.step()
    trial.optimizer.step()
    for name, mask in trial.sparse.topology.items():
        new = mask & ~before[name]
        assert new.any()
        assert gradients[name][new].min() >= gradients[name][~mask & ~before[name]].max(), name


def test_reset_regrown_wipes_what_the_paper_keeps() -> None:
    """With α = 1 everything is dropped; what has the highest gradients comes back: with its weight, or without."""
    for variants, kept in (((), True), (("reset-regrown",), False)):
        trial = Trial("rigl", variants=variants, fraction=1.0, begin=10, decay="constant").train(10)
        before = trial.sparse.topology
        trial.train(1)
        regrown = trial.sparse.topology["2.weight"] & before["2.weight"]
        assert regrown.any()
        assert bool(trial.weights["2.weight"][regrown].any()) is kept


def test_born_along_the_gradient() -> None:
    trial = Trial("rigl", variants=("new-along-gradient",), options={"new_weight_scale": 0.1})
    x, y = next(batches(1, 0))
    F.cross_entropy(trial.model(x), y).backward()
    gradient = trial.model[2].weight.grad.clone()  # type: ignore[union-attr, operator]
    trial.sparse.step()
    born = trial.sparse.topology["2.weight"] & ~trial.begin["2.weight"]
    assert torch.allclose(trial.weights["2.weight"][born], -0.1 * gradient[born])


def test_options_are_checked() -> None:
    assert find_method("snfs", {"momentum": 0.99}, []).options == {"momentum": 0.99}
    with pytest.raises(InputError, match=r"no option .momentun.: did you mean .momentum."):
        find_method("snfs", {"momentun": 0.99}, [])


def test_a_method_is_a_value() -> None:
    assert replace(METHODS["rigl"], name="mine").grow is METHODS["rigl"].grow


def test_a_method_is_given_by_name_by_value_or_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "methods_of_mine", SimpleNamespace(RIGL=METHODS["rigl"]))
    own = replace(METHODS["rigl"], name="mine", drop=lambda view: -view.weight.abs())
    by_name, by_value = Trial("rigl").train(20), Trial(METHODS["rigl"]).train(20)
    by_reference = Trial("methods_of_mine:RIGL").train(20)
    assert by_name.sparse.topology == by_value.sparse.topology == by_reference.sparse.topology
    other = Trial(own).train(20)
    assert other.sparse.method.name == "mine"
    assert other.sparse.topology != by_name.sparse.topology


def test_what_a_reference_names_has_to_be_a_method() -> None:
    with pytest.raises(InputError, match="method 'collections:Counter' is a type, expected a Method"):
        Trial("collections:Counter")


def test_options_and_variants_of_a_value() -> None:
    trial = Trial(METHODS["snfs"], options={"momentum": 0.5}, variants=("reset-regrown",))
    assert trial.sparse.method.options == {"momentum": 0.5}
    assert not trial.sparse.method.keeps_regrown


@pytest.mark.parametrize(
    ("total", "shares", "room", "expected"),
    [
        (10, [1, 1], [10, 10], [5, 5]),
        (10, [1, 1], [3, 10], [3, 7]),
        (5, [1, 0], [2, 10], [2, 3]),
        (7, [2, 1, 1], [9, 9, 9], [3, 2, 2]),
        (9, [1, 1], [2, 2], [2, 2]),
    ],
)
def test_shares_in_whole_numbers(total: int, shares: list[float], room: list[int], expected: list[int]) -> None:
    assert share_whole(total, shares, room) == expected
