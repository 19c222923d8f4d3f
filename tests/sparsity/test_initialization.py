"""The weights a network starts from."""

from math import sqrt

import pytest
import torch
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.sparsity.initialization import INITIALIZERS, InitConfig, initialize, scale_for_fan_in


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(400, 300), nn.BatchNorm1d(300), nn.Linear(300, 100))


def weights(config: InitConfig) -> list[torch.Tensor]:
    model = network()
    torch.manual_seed(1)
    initialize(model, config)
    return [weight.detach().clone() for weight in sparse_parameters(model).values()]


def test_glorot_is_within_its_bound() -> None:
    for weight, bound in zip(weights(InitConfig("glorot-uniform")), (sqrt(6 / 700), sqrt(6 / 400)), strict=True):
        assert 0.99 * bound < weight.abs().max() <= bound
        assert weight.std() == pytest.approx(bound / sqrt(3), rel=0.02)


def test_he_has_its_variance() -> None:
    for weight, fan_in in zip(weights(InitConfig("he-normal")), (400, 300), strict=True):
        assert weight.std() == pytest.approx(sqrt(2 / fan_in), rel=0.02)


def test_network_leaves_all_as_it_is() -> None:
    model, same = network(), network()
    initialize(model, InitConfig())
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), same.parameters(), strict=True))


@pytest.mark.parametrize("name", [name for name in INITIALIZERS if name != "network"])
def test_biases_start_at_zero_and_norms_stay(name: str) -> None:
    model = network()
    initialize(model, InitConfig(name))
    assert not model[0].bias.any()
    assert not model[2].bias.any()
    assert (model[1].weight == 1).all()


@pytest.mark.parametrize("name", list(INITIALIZERS))
def test_the_seed_decides_and_the_scale_multiplies(name: str) -> None:
    once, twice = weights(InitConfig(name)), weights(InitConfig(name, scale=2.0))
    assert all(torch.equal(2 * one, other) for one, other in zip(once, twice, strict=True))


def test_sparse_layers_are_scaled_for_their_fan_in() -> None:
    model, same = network(), network()
    scale_for_fan_in(model, {"0.weight": 0.01, "2.weight": 1.0}, 0.5)
    torch.testing.assert_close(model[0].weight, 10 * same[0].weight)
    assert torch.equal(model[2].weight, same[2].weight)
    assert torch.equal(model[0].bias, same[0].bias)


def test_power_zero_is_the_authors_code() -> None:
    model, same = network(), network()
    scale_for_fan_in(model, {}, 0.0)
    assert torch.equal(model[0].weight, same[0].weight)


def test_the_variance_of_a_sum_is_kept() -> None:
    """With power ½ a masked unit's sum is spread as the full one's was."""
    torch.manual_seed(0)
    model = nn.Linear(1000, 2000)
    x = torch.randn(20, 1000)
    full = model(x).std()
    mask = torch.rand(2000, 1000) < 0.1
    scale_for_fan_in(model, {"weight": 0.1}, 0.5)
    masked = nn.functional.linear(x, model.weight * mask, model.bias).std()
    assert masked.item() == pytest.approx(full.item(), rel=0.05)


def test_an_unknown_initializer() -> None:
    with pytest.raises(InputError, match="unknown initializer 'glorot': did you mean 'glorot-uniform'"):
        initialize(network(), InitConfig("glorot"))
