"""One-shot pruning by second-order information: exact counts, outputs that stay near, and what it cannot do."""

import warnings
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_training import sgd
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import connections
from rigl_compress.sparsity import layer_samples
from rigl_compress.sparsity.second_order import Moments, surgeon
from rigl_compress.sparsity.sparsity_config import SparsityConfig


class Residual(nn.Module):
    """A convolution of two groups beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.norm(self.conv(x)).relu()
        return out


class Encoder(nn.Module):
    """Linear layers on three axes, one of which runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last = nn.Linear(12, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.twice(self.twice(x).relu()).relu())
        return out


def _network(kind: str) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    if kind == "convolutions":
        model: nn.Module = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Residual()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 6)),
        )
        return model.eval(), [torch.randn(25, 3, 11, 11) + 0.5 for _ in range(4)]
    if kind == "tokens":
        return Encoder().eval(), [torch.randn(4, 16, 12) for _ in range(4)]
    model = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.GELU(), nn.Linear(30, 5))
    return model.eval(), [torch.randn(64, 20) @ torch.randn(20, 20) for _ in range(4)]


NETWORKS = ["convolutions", "tokens", "perceptron"]


def _distance(model: nn.Module, other: nn.Module, batches: list[Tensor]) -> float:
    with torch.no_grad():
        return float(sum((model(x) - other(x)).square().sum() for x in batches))


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("sparsity", [0.3, 0.6, 0.85])
def test_counts_are_exact_and_outputs_nearer_than_by_magnitude(kind: str, sparsity: float) -> None:
    dense, batches = _network(kind)
    config = SparsityConfig(sparsity=sparsity, distribution="erk", dense=())
    pruned, cut = deepcopy(dense), deepcopy(dense)
    topology, by_magnitude = rc.obs_topology(pruned, batches, config), rc.magnitude_topology(cut, config)
    by_magnitude.apply_to(cut)
    densities = config.densities(dense)
    for layer in topology.layers:
        assert layer.active == connections(densities[layer.name], layer.total)
        assert not pruned.get_parameter(layer.name)[~topology[layer.name]].any()
    assert _distance(pruned, dense, batches) < 0.9 * _distance(cut, dense, batches)
    assert not pruned.training


@given(st.integers(0, 1000), st.integers(1, 90), st.integers(1, 30), st.integers(1, 12))
@settings(max_examples=30)
def test_a_layer_is_never_worse_than_by_magnitude(seed: int, columns: int, samples: int, rows: int) -> None:
    """On any samples, also where they are fewer than columns or the same: the loss is that of the damped problem."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, columns, generator=g, dtype=torch.float64)
    x[:, columns // 2 :] = x[:, : columns - columns // 2] if seed % 3 == 0 else x[:, columns // 2 :]
    weight = torch.randn(rows, columns, generator=g, dtype=torch.float64)
    moments, count = Moments(x.T @ x, x.T @ (x @ weight.T)), max(1, weight.numel() // 3)
    found, mask = surgeon(weight, moments, count)
    assert int(mask.sum()) == count
    assert bool(torch.isfinite(found).all())
    assert not found[~mask].any()

    def loss(other: Tensor) -> float:
        off = other - weight
        return float((x @ off.T).square().sum() + moments.damping * off.square().sum())

    masked = torch.where(mask, weight, 0.0)
    assert loss(found) <= loss(masked) * (1 + 1e-9) + 1e-9, "the same mask, weights not changed"


@pytest.mark.parametrize("value", [0.0, 3.3])
def test_a_layer_that_sees_constants_keeps_its_weights_finite(value: float) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    rc.obs_topology(model, [torch.full((50, 6), value)], sparsity=0.5, distribution="uniform", dense=())
    assert all(bool(torch.isfinite(each).all()) for each in model.parameters())


def test_a_bias_takes_up_the_mean() -> None:
    """Of the layer, or of the batch norm behind it: mean outputs stay."""
    for bias in (True, False):
        torch.manual_seed(1)
        dense = nn.Sequential(nn.Linear(16, 8, bias=bias), nn.BatchNorm1d(8)).eval()
        x = torch.rand(400, 16) + 2
        pruned = deepcopy(dense)
        rc.obs_topology(pruned, [x], sparsity=0.7, distribution="uniform", dense=())
        with torch.no_grad():
            torch.testing.assert_close(pruned(x).mean(0), dense(x).mean(0), atol=1e-4, rtol=1e-4)


def test_dense_layers_stay_as_they_are_unless_they_follow() -> None:
    dense, batches = _network("perceptron")
    pruned = deepcopy(dense)
    topology = rc.obs_topology(pruned, batches, sparsity=0.8, dense=("first", "4"))
    assert topology["0.weight"].all()
    assert topology["4.weight"].all()
    assert torch.equal(pruned.get_parameter("0.weight"), dense.get_parameter("0.weight"))
    assert torch.equal(pruned.get_parameter("4.weight"), dense.get_parameter("4.weight"))


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of all layers are kept: as many samples as fit."""
    monkeypatch.setattr(layer_samples, "MEMORY", 4 * 75 * 80)
    dense, batches = _network("perceptron")
    weights = {name: each for name, each in dense.named_parameters() if each.dim() == 2}
    found = layer_samples.sampled_outputs(dense, weights, batches)
    assert {name: sum(each.shape[-1] for each in parts) for name, parts in found.items()} == dict.fromkeys(weights, 80)


def test_few_samples_are_said_once() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.warns(UserWarning, match="too few samples") as found:
        rc.obs_topology(model, [torch.randn(8, 32)], sparsity=0.5, distribution="uniform", dense=())
    assert [str(each.message) for each in found] == [
        "too few samples for 2 layers, such as 0.weight: 8 for 32 inputs; pass more batches"
    ]
    assert found[0].filename == __file__


def test_what_cannot_be_sampled_goes_by_magnitude_and_is_said() -> None:
    torch.manual_seed(0)

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(6, 5, batch_first=True), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.gru(x)[0])
            return out

    model = Reader()
    by_magnitude = rc.magnitude_topology(model, sparsity=0.5, dense=())
    with pytest.warns(UserWarning, match="pruned by magnitude, because their inputs cannot be sampled: gru.weight_ih"):
        topology = rc.obs_topology(model, [torch.randn(10, 20, 6)], sparsity=0.5, dense=())
    assert torch.equal(topology["gru.weight_ih_l0"], by_magnitude["gru.weight_ih_l0"])


def test_training_goes_on_from_it() -> None:
    model, batches = _network("perceptron")
    topology = rc.obs_topology(model, batches, sparsity=0.6, dense=("last",))
    before = {name: each.clone() for name, each in model.named_parameters()}
    sparse = rc.Sparsifier(
        model, sgd(model), method="rigl", sparsity=0.6, dense=("last",), total_steps=10, topology=topology
    )
    assert sparse.topology == topology
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "there is no batch to prune with: pass some hundred training samples"),
        ([torch.full((4, 20), float("nan"))], "the inputs or outputs of 0.weight are not finite"),
    ],
)
def test_bad_batches(batches: list[Any], message: str) -> None:
    model, _ = _network("perceptron")
    before = deepcopy(model.state_dict())
    with warnings.catch_warnings(action="ignore"), pytest.raises(InputError, match=message):
        rc.obs_topology(model, batches, sparsity=0.5, dense=())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


def test_the_sparsifier_has_no_samples() -> None:
    model, _ = _network("perceptron")
    with pytest.raises(InputError, match=r'the topology "obs" depends on training samples: pass topology=obs_topology'):
        rc.Sparsifier(model, sgd(model), method="rigl", sparsity=0.5, total_steps=10, topology="obs")
