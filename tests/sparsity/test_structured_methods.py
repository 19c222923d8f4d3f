"""Structured methods: their mathematics against plain integration and counting, and what all of them promise."""

from itertools import pairwise
from math import exp, log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_training import take_step
from tiny import Trainer
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.prune.stage import prune
from rigl_compress.pruning.dead_neurons import prune_dead_neurons
from rigl_compress.sparsity import structured_methods as structured
from rigl_compress.sparsity.gate_sites import sites_of
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.structured_methods import CutNormal, Units

STRUCTURED = [name for name, method in METHODS.items() if method.gating is not None]
STEPS = 60


def units(weights: Tensor | None = None, first: bool = False, **learned: list[float]) -> Units:
    size = len(next(iter(learned.values()))) if learned else len(weights)  # type: ignore[arg-type]
    numbers = {name: torch.tensor(values) for name, values in learned.items()}
    given = torch.ones(size, 3) if weights is None else weights
    return Units(size, first, numbers, given, {"strength": 1.0, "drop": 0.5, "drop_inputs": 0.2})


# SBP


@given(mean=st.floats(-19.5, 0), log_deviation=st.floats(-4, 5))
def test_moments_and_entropy_of_the_cut_normal_are_its_integrals(mean: float, log_deviation: float) -> None:
    deviation = exp(log_deviation)
    edges = np.linspace(max(-20.0, mean - 12 * deviation), min(0.0, mean + 12 * deviation), 200_001)
    middle, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    weight = np.exp(-0.5 * ((middle - mean) / deviation) ** 2)
    density = weight / (weight.sum() * width)
    cut = CutNormal(torch.tensor([mean]).double(), torch.tensor([deviation]).double())
    for order in (1, 2):
        assert cut.moment(order).item() == pytest.approx((np.exp(order * middle) * density).sum() * width, rel=1e-4)
    entropy = -(density * np.log(np.maximum(density, 1e-300))).sum() * width
    assert cut.entropy().item() == pytest.approx(entropy, abs=1e-4)


def test_sbp_draws_from_the_distribution_it_takes_moments_of() -> None:
    torch.manual_seed(0)
    found = units(mean=[0.0, -1.0, -8.0], log_deviation=[-5.0, -0.5, 1.5])
    drawn = structured.sbp_noisy(found, 200_000)
    assert drawn.mean(0) == pytest.approx(CutNormal.of(found).moment(1).tolist(), rel=0.03)
    assert drawn.min() >= exp(-20) * 0.99
    assert drawn.max() <= 1


def test_sbp_removes_what_has_more_noise_than_signal() -> None:
    found = structured.sbp_value(units(mean=[0.0, -6.0], log_deviation=[-5.0, 1.0]))
    assert found[0] == pytest.approx(1, abs=0.02)
    assert found[1] == 0


# L0


def test_l0_penalty_is_the_expected_number_of_weights_behind_open_gates() -> None:
    torch.manual_seed(0)
    found = units(log_odds=[-2.0, 0.0, 1.5])
    is_open = (structured.l0_noisy(found, 200_000) > 0).float().mean(0)
    assert structured.l0_penalty(found).item() == pytest.approx(3 * is_open.sum().item(), rel=0.01)


def test_l0_gates_close_and_open_exactly() -> None:
    assert structured.l0_value(units(log_odds=[log(1 / 11) - 0.01, 0.0, log(11) + 0.01])).tolist() == [0, 0.5, 1]
    assert torch.sigmoid(structured.l0_start(units(log_odds=[0.0] * 1000, first=True))["log_odds"]).mean() == (
        pytest.approx(0.8, abs=0.01)
    )


# VIB


def test_vib_removes_what_is_noisier_than_its_mean() -> None:
    assert structured.vib_value(units(mean=[1.0, -0.5, 0.1], log_variance=[-9.0, -9.0, 0.0])).tolist() == [1, -0.5, 0]
    passes = structured.vib_penalty(units(mean=[1.0, 0.0], log_variance=[0.0, 0.0]))
    assert passes.item() == pytest.approx(0.5 * log(2))  # a mean of zero lets nothing pass


# Norms


def test_a_short_group_lands_on_zero_and_a_long_one_is_shortened() -> None:
    weights = torch.tensor([[3.0, 4.0, 0.0], [0.01, 0.0, 0.0]])
    structured.shrink_groups(units(weights), rate=0.1)
    pull = 0.1 * sqrt(3)
    assert weights[0].tolist() == pytest.approx([3 * (1 - pull / 5), 4 * (1 - pull / 5), 0])
    assert not weights[1].any()


# What all promise


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 10, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(40, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


NETWORKS = {"perceptron": (perceptron, (12,)), "convolutional": (convolutional, (1, 4, 4))}


class Trial:
    """A small network that learns with a structured method."""

    def __init__(self, method: str, network: str = "perceptron", **settings: object) -> None:
        torch.manual_seed(0)
        build, self.shape = NETWORKS[network]
        self.model = build()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        chosen = {"sparsity": 0.4, "total_steps": STEPS, **settings}
        self.sparse = Sparsifier(self.model, self.optimizer, method=method, **chosen)
        self.losses: list[float] = []

    def train(self, count: int = STEPS) -> "Trial":
        self.model.train()
        for index in range(count):
            x = torch.randn(64, *self.shape, generator=torch.Generator().manual_seed(index))
            loss = F.cross_entropy(self.model(x), x.flatten(1)[:, :4].argmax(dim=1)) + self.sparse.penalty()
            self.losses.append(take_step(self.sparse, self.optimizer, loss))
        return self

    @torch.no_grad()
    def answers(self) -> Tensor:
        x = torch.randn(16, *self.shape, generator=torch.Generator().manual_seed(99))
        found: Tensor = self.model.eval()(x)
        return found


# Settings under which each method removes some units of the small networks, and not all.
STRONG: dict[str, dict[str, float]] = {
    "sbp": {"strength": 1.5e-3, "rate": 25.0},
    "l0": {"strength": 1e-4, "rate": 12.0},
    "vib": {"strength": 0.01, "rate": 50.0},
    "l1-filter": {},
    "slimming": {"strength": 1e-3},
    "group-lasso": {"strength": 0.3},
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", STRUCTURED)
def test_conformance(method: str, network: str) -> None:
    trial, twin = (Trial(method, network, options=STRONG[method]).train() for _ in range(2))
    assert trial.sparse.updates == 1  # units were chosen, once
    before, sparsity = trial.answers(), trial.sparse.sparsity
    trial.sparse.finish()
    # without its gates the network computes what it did with them
    assert torch.allclose(trial.answers(), before, atol=1e-5)
    assert trial.sparse.topology.sparsity == sparsity
    # dead weights are exactly zero, some are, and not all of any layer
    topology = trial.sparse.topology
    parameters = dict(trial.model.named_parameters())
    assert all(not parameters[name][~mask].any() for name, mask in topology.items())
    assert 0 < sparsity < 1
    assert all(mask.any() for mask in topology.values())
    # the removal stage makes a smaller dense network of it, which computes the same
    pruned = prune_dead_neurons(trial.model, topology, torch.zeros(1, *trial.shape))
    assert pruned.topology.sparsity == 0
    assert sum(p.numel() for p in pruned.model.parameters()) < sum(p.numel() for p in parameters.values())
    x = torch.randn(16, *trial.shape)
    assert torch.allclose(pruned.model.eval()(x), trial.model.eval()(x), atol=1e-5)
    # it learns, and does so again in the same way
    twin.sparse.finish()
    assert trial.losses[-1] < 0.9 * trial.losses[0]
    assert torch.equal(trial.answers(), twin.answers())


@pytest.mark.parametrize("method", STRUCTURED)
def test_before_the_search_begins_training_is_dense(method: str) -> None:
    trial, dense = Trial(method, begin=20, end=40), Trial("dense")
    assert trial.train(20).losses == dense.train(20).losses
    assert trial.sparse.sparsity == 0
    assert trial.sparse.updates == 0


@pytest.mark.parametrize("method", STRUCTURED)
def test_what_was_chosen_stays_dead(method: str) -> None:
    trial = Trial(method, options=STRONG[method], end=30).train(31)
    chosen = trial.sparse.topology
    assert trial.train(STEPS - 31).sparse.topology == chosen
    assert trial.sparse.penalty() == 0


def test_filter_pruning_keeps_the_share_asked_for_in_each_layer() -> None:
    trial = Trial("l1-filter", sparsity=0.5, layers={"2": 0.9}).train()
    alive = [int(mask.any(0).sum()) for mask in trial.sparse.topology.values()]
    assert alive == [6, 3, 10]  # inputs of the layers: half of 12, a tenth of 30, half of 20


def test_filter_pruning_keeps_the_largest_norms() -> None:
    trial = Trial("l1-filter", end=30).train(30)
    norms = trial.model[2].weight.detach().abs().sum(0)  # type: ignore[union-attr, operator]
    kept = trial.train(1).sparse.topology["2.weight"].any(0)
    # one more step lies between: compare all but the units at the edge
    assert norms[kept].mean() > norms[~kept].max()


def test_slimming_keeps_a_share_of_the_whole_network() -> None:
    trial = Trial("slimming", sparsity=0.5, options={"strength": 1e-3}).train()
    alive = [int(mask.any(0).sum()) for mask in trial.sparse.topology.values()]
    assert sum(alive) == 31
    assert alive != [6, 15, 10]


def test_layers_can_have_strengths_of_their_own() -> None:
    plain, free = (
        Trial("l0", options=STRONG["l0"], strengths=strengths).train().sparse.topology["2.weight"].any(0).sum()
        for strengths in ({}, {"2": 0.0})
    )
    assert plain < free


def test_a_negative_strength_is_refused() -> None:
    with pytest.raises(InputError, match="strength of layer '2' is -1"):
        Trial("l0", strengths={"2": -1.0})


def test_the_factors_of_batch_normalisation_are_what_slimming_slims() -> None:
    trial = Trial("slimming", "convolutional")
    assert trial.sparse.updater.gates is not None
    norm = trial.model[1]
    assert trial.sparse.updater.gates.learned[0]["scale"] is norm.weight  # type: ignore[union-attr]
    assert len(trial.sparse.updater.gates.parameters()) == 2  # the other two layers have factors of their own


def test_units_are_inputs_of_linear_layers_and_channels_of_convolutions() -> None:
    assert [(site.name, site.size, site.first) for site in sites_of(convolutional())] == [
        ("0.weight", 8, False),
        ("3.weight", 10, False),
        ("8.weight", 16, False),
    ]


@pytest.mark.parametrize("method", STRUCTURED)
def test_a_run_is_resumed_bit_by_bit(trainer: Trainer, method: str) -> None:
    settings = (f"sparsity.method={method}", "optimizer.name=adam", "learning_rate.peak=0.01", "sparsity.end_share=0.6")
    whole = trainer(*settings, run="whole")

    def stop(progress: object) -> None:
        if progress.iteration >= 23:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer(*settings, run="stopped", listener=stop)
    again = trainer(*settings, run="stopped", resume=True)
    for name, weight in whole.model().weights.items():
        assert torch.equal(weight, again.model().weights[name]), name
    assert whole.model().topology == again.model().topology


def test_a_trained_run_is_pruned_to_a_smaller_dense_network(trainer: Trainer) -> None:
    run = trainer("sparsity.method=l1-filter", "sparsity.sparsity=0.5")
    pruned = prune(run.model())
    assert pruned.topology.sparsity == 0
    assert run.result()["pruned"]["architecture"] == "392-12-8"
    sizes = [392, 12, 8, 10]
    weights, biases = sum(a * b for a, b in pairwise(sizes)), sum(sizes[1:])
    assert run.result()["pruned"]["bitmask_bytes"] == 4 * (weights + biases)  # a dense network needs no mask


def test_a_network_without_units_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())  # its channels are the answers
    with pytest.raises(InputError, match="no linear layer and no convolution"):
        Sparsifier(model, torch.optim.SGD(model.parameters(), lr=0.1), method="l0", total_steps=10)


def test_a_network_that_cannot_be_traced_is_refused() -> None:
    class Twisted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.fc(x if x.sum() > 0 else -x)
            return found

    model = Twisted()
    with pytest.raises(InputError, match="can be traced"):
        Sparsifier(model, torch.optim.SGD(model.parameters(), lr=0.1), method="vib", total_steps=10)
