"""Transformers in sparse training: each projection by itself, exact zeros, also where torch takes its fast path."""

import pytest
import torch
from torch import Tensor, nn

from rigl_compress.models.sparse_parameters import sparse_layers, sparse_parameters
from rigl_compress.models.topology import connections
from rigl_compress.sparsity.initialization import InitConfig, initialize, scale_for_fan_in
from rigl_compress.sparsity.sparsifier import Sparsifier
from rigl_compress.sparsity.sparsity_config import SparsityConfig

SHAPE = (3, 5, 8)
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def encoder(norm_first: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def trained(model: nn.Module, method: str = "rigl") -> Sparsifier:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sparse = Sparsifier(model, optimizer, method=method, sparsity=0.75, interval=2, fraction=0.5, total_steps=100)
    for _ in range(7):
        model(torch.randn(SHAPE)).square().mean().backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    return sparse


@pytest.mark.parametrize("method", ["rigl", "set", "static", "pruning", "dnw", "snip"])
def test_every_projection_keeps_its_own_number_of_connections(method: str) -> None:
    model = encoder()
    sparse = trained(model, method)
    densities = sparse.config.densities(model)
    parameters = sparse_parameters(model)
    for name, part in sparse_layers(model).items():
        mask = part.of(sparse.topology[part.parameter])
        assert not part.of(parameters[part.parameter].detach())[~mask].any()
        if method != "pruning":  # which has not come to its end
            assert int(mask.sum()) == connections(densities[name], mask.numel()), name


def test_projections_are_rewired_by_themselves() -> None:
    model = encoder()
    start = Sparsifier(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.75, total_steps=9).topology
    end = trained(encoder()).topology
    for name, part in sparse_layers(model).items():
        if name.endswith((".q", ".k", ".v")):
            assert bool((part.of(start[part.parameter]) != part.of(end[part.parameter])).any()), name


def test_single_projections_can_have_their_own_density() -> None:
    densities = SparsityConfig(sparsity=0.8, dense=("layers.0*.q",), layers={"*.v": 0.5}).densities(encoder())
    assert densities["layers.0.self_attn.in_proj_weight.q"] == 1
    assert densities["layers.1.self_attn.in_proj_weight.q"] < 0.5
    assert densities["layers.1.self_attn.in_proj_weight.v"] == 0.5


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_fast_path_of_evaluation_computes_with_the_same_zeros(
    norm_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = encoder(norm_first)
    trained(model)
    x, taken, fast_path = torch.randn(SHAPE), [], torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: taken.append(1) or fast_path(*args))
    with torch.no_grad():
        slow = model.train()(x)
        assert not taken
        fast = model.eval()(x)
    assert len(taken) == 2
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)


def test_the_dense_layers_of_a_network_are_its_own_choice() -> None:
    class Net(nn.Module):
        dense_layers = ("*head",)

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.stem(x))
            return found

    def dense(**settings: object) -> list[str]:
        densities = SparsityConfig(sparsity=0.5, **settings).densities(Net())  # type: ignore[arg-type]
        return [name for name, density in densities.items() if density == 1]

    assert dense() == ["head.weight"]
    assert dense(dense=()) == []
    assert dense(dense=("stem",)) == ["stem.weight"]
    assert dense(layers={"head": 0.25}) == []
    assert SparsityConfig(sparsity=0.5).densities(nn.Sequential(Net()))["0.head.weight"] == 1


def test_packed_projections_are_drawn_with_their_own_fan() -> None:
    model = nn.MultiheadAttention(300, 3)
    nn.init.ones_(model.in_proj_bias)
    initialize(model, InitConfig("glorot-uniform"))
    bound = (6 / 600) ** 0.5
    for part in model.in_proj_weight.detach().chunk(3):
        assert 0.99 * bound < part.abs().max() <= bound
    assert not model.in_proj_bias.any()


def test_packed_projections_are_scaled_for_their_own_density() -> None:
    model = nn.MultiheadAttention(4, 2)
    before = model.in_proj_weight.detach().clone()
    parts = {f"in_proj_weight.{part}": density for part, density in zip("qkv", (0.25, 1.0, 0.01), strict=True)}
    scale_for_fan_in(model, {**parts, "out_proj.weight": 1.0}, 0.5)
    factors = torch.tensor([2.0, 1.0, 10.0]).repeat_interleave(4)[:, None]
    torch.testing.assert_close(model.in_proj_weight.detach(), before * factors)
