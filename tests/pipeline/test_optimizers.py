"""Optimizers by name."""

import pytest
import torch
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.optimizers import (
    OPTIMIZERS,
    OptimizerConfig,
    ParameterGroup,
    build_optimizer,
    set_learning_rate,
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2, 2))


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_weights_decay_and_nothing_else(name: str) -> None:
    model = network()
    optimizer = build_optimizer(model, OptimizerConfig(name, weight_decay=0.01))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert {key: decay[id(parameter)] for key, parameter in model.named_parameters()} == {
        "0.weight": 0.01,
        "0.bias": 0.0,
        "1.weight": 0.0,
        "1.bias": 0.0,
        "3.weight": 0.01,
        "3.bias": 0.0,
    }


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_nothing_moves_until_a_rate_is_set(name: str) -> None:
    model = network()
    optimizer = build_optimizer(model, OptimizerConfig(name))
    before = [parameter.clone() for parameter in model.parameters()]

    def step() -> list[bool]:
        model.zero_grad()
        model(torch.ones(4, 1, 3, 3)).square().sum().backward()
        optimizer.step()
        return [torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before, strict=True)]

    assert all(step())
    set_learning_rate(optimizer, 0.1)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1]
    assert not all(step())


def test_sgd_settings() -> None:
    (group,) = build_optimizer(network(), OptimizerConfig(momentum=0.8)).param_groups
    assert (group["momentum"], group["nesterov"]) == (0.8, True)
    (group,) = build_optimizer(network(), OptimizerConfig(momentum=0.0)).param_groups
    assert (group["momentum"], group["nesterov"]) == (0.0, False), "torch refuses Nesterov without momentum"


def test_adam_settings() -> None:
    (group,) = build_optimizer(network(), OptimizerConfig("adam", beta2=0.9)).param_groups
    assert group["betas"] == (0.9, 0.9)


def test_adamw_decays_apart_from_the_gradient() -> None:
    assert isinstance(build_optimizer(network(), OptimizerConfig("adamw")), torch.optim.AdamW)


def test_a_group_per_weight_decay() -> None:
    config = OptimizerConfig(weight_decay=0.1, groups=(ParameterGroup("Linear", weight_decay=0.3),))
    assert {
        group["weight_decay"]: len(group["params"]) for group in build_optimizer(network(), config).param_groups
    } == {
        0.1: 1,
        0.0: 4,
        0.3: 1,
    }


def test_decay_of_a_layer_that_is_not_there() -> None:
    with pytest.raises(InputError, match="layer 'fc9' matches nothing"):
        build_optimizer(network(), OptimizerConfig(groups=(ParameterGroup("fc9", weight_decay=0.1),)))


def test_an_unknown_optimizer() -> None:
    with pytest.raises(InputError, match="unknown optimizer 'adm': did you mean 'adam'"):
        build_optimizer(network(), OptimizerConfig("adm"))


def test_weights_do_not_grow() -> None:
    with pytest.raises(InputError, match=r"weight_decay is -0.5, expected 0 or more"):
        OptimizerConfig(weight_decay=-0.5)


@pytest.mark.parametrize("wrong", [OptimizerConfig(momentum=-1.0), OptimizerConfig("adam", beta2=2.0)])
def test_values_that_torch_refuses(wrong: OptimizerConfig) -> None:
    with pytest.raises(InputError, match=rf"optimizer '{wrong.name}': .*; change \[optimizer\] of the recipe"):
        build_optimizer(network(), wrong)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_fused_kernels_take_the_same_steps(name: str) -> None:
    def trained(fused: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = build_optimizer(model, OptimizerConfig(name, weight_decay=0.01, fused=fused))
        assert bool(optimizer.param_groups[0]["fused"]) == fused
        set_learning_rate(optimizer, 0.01)
        for seed in range(5):
            x = torch.rand(4, 9, generator=torch.Generator().manual_seed(seed))
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [parameter.detach() for parameter in model.parameters()]

    for one, other in zip(trained(False), trained(True), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# Groups


def settings_of(config: OptimizerConfig) -> dict[str, tuple[float, float] | None]:
    """The rate and the decay of each parameter; None: it is frozen and in no optimizer."""
    model = network()
    groups = build_optimizer(model, config).param_groups
    found = {id(each): (group["rate"], group["weight_decay"]) for group in groups for each in group["params"]}
    names = dict(model.named_parameters())
    assert {name for name, each in names.items() if each.requires_grad} == {
        name for name, each in names.items() if id(each) in found
    }
    return {name: found.get(id(each)) for name, each in names.items()}


def test_rates_decays_and_freezing_by_pattern() -> None:
    groups = (
        ParameterGroup("Conv2d", rate=0.1, weight_decay=0.3),
        ParameterGroup("1", frozen=True),
        ParameterGroup("*.bias", rate=2.0),
    )
    assert settings_of(OptimizerConfig(weight_decay=0.01, groups=groups)) == {
        "0.weight": (0.1, 0.3),
        "0.bias": (0.1, 0.0),
        "1.weight": None,
        "1.bias": None,
        "3.weight": (1.0, 0.01),
        "3.bias": (2.0, 0.0),
    }


def test_the_first_group_that_matches_counts() -> None:
    groups = (ParameterGroup("3.weight", rate=0.5), ParameterGroup("*", rate=2.0))
    found = settings_of(OptimizerConfig(groups=groups))
    assert (found["3.weight"], found["3.bias"], found["0.weight"]) == ((0.5, 0.0), (2.0, 0.0), (2.0, 0.0))


def test_rates_are_factors_on_the_schedule() -> None:
    optimizer = build_optimizer(network(), OptimizerConfig(groups=(ParameterGroup("0", rate=0.1),)))
    set_learning_rate(optimizer, 0.5)
    assert sorted(group["lr"] for group in optimizer.param_groups) == [pytest.approx(0.05), 0.5]


def test_what_the_model_froze_is_not_trained() -> None:
    model = network()
    model[0].weight.requires_grad_(False)  # type: ignore[union-attr]
    optimizer = build_optimizer(model, OptimizerConfig())
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 5


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ((ParameterGroup("3.wait"),), "optimizer.groups: layer '3.wait' matches nothing: known: 0, 1, 3"),
        ((ParameterGroup("*"), ParameterGroup("3")), "earlier groups match all of '3': move it before them"),
        ((ParameterGroup("*.bias", weight_decay=0.1),), r"'\*.bias' matches no weight, and biases"),
        ((ParameterGroup("*", frozen=True),), "every parameter is frozen"),
    ],
)
def test_groups_that_change_nothing_or_everything(groups: tuple[ParameterGroup, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_optimizer(network(), OptimizerConfig(groups=groups))


@pytest.mark.parametrize("options", [{"rate": 0.3}, {"weight_decay": 0.1}])
def test_a_frozen_group_takes_nothing_else(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="of 'fc', frozen = true trains nothing: leave out its rate and weight_decay"):
        ParameterGroup("fc", frozen=True, **options)  # type: ignore[arg-type]


def test_a_group_with_an_impossible_decay() -> None:
    with pytest.raises(InputError, match=r"of 'fc', weight_decay is -1.0, expected 0 or more"):
        ParameterGroup("fc", weight_decay=-1.0)
