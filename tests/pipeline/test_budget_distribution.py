"""The distribution "budget": densities for a time, a size or a number of FLOPs, fixed before training."""

from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import every_model, small
from tiny import Cli
from torch import nn

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_parameters import layer_shapes
from rigl_compress.onnx_pruning.layer_costs import time_costs
from rigl_compress.onnx_pruning.prunable_layers import find_prunable
from rigl_compress.pipeline.budget_distribution import (
    SPARSEST,
    STEP,
    NetworkCost,
    budget_densities,
    budget_lines,
    first_sample,
    limit,
    network_cost,
    sensitivity,
)
from rigl_compress.sparsity.budgets import KINDS, parse_budget
from rigl_compress.sparsity.distributions import erdos_renyi_kernel
from rigl_compress.sparsity.sparsity_config import SparsityConfig


def perceptron(widths: list[int]) -> nn.Module:
    layers = [nn.Linear(one, other, bias=False) for one, other in pairwise(widths)]
    return nn.Sequential(*layers).to("meta")


def conv_net() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def wish(kind: str, cost: NetworkCost, share: float) -> str:
    """A budget of a share of what the dense network costs."""
    amount = {"speedup": 1 / share, "latency": share * cost.dense * 1e-9}.get(kind, share * cost.dense)
    return f"{kind}={amount:.9f}{'s' if kind == 'latency' else ''}"


@given(
    widths=st.lists(st.integers(30, 400), min_size=2, max_size=6),
    density=st.floats(0.1, 0.9),
)
@settings(max_examples=40, deadline=None)
def test_where_connections_are_what_costs_it_is_erk(widths: list[int], density: float) -> None:
    model = perceptron(widths)
    shapes = layer_shapes(model)
    flops = 2 * sum(prod(shape) for shape in shapes.values()) * density
    found = budget_densities(model, torch.empty(1, widths[0], device="meta"), f"flops={flops}", {})
    expected = erdos_renyi_kernel(shapes, density)
    kept = {name: max(value, SPARSEST) for name, value in expected.items()}
    error, least = (sum(sensitivity(shapes[name], each[name]) for name in shapes) for each in (found, kept))
    a_step = (1 / STEP**2 - 1) * sum(sensitivity(shapes[name], each / (1 + each)) for name, each in kept.items())
    assert error == pytest.approx(least, abs=a_step)
    assert sum(found[name] * prod(shape) for name, shape in shapes.items()) <= flops / 2 * (1 + 1e-9)
    wide = [name for name, shape in shapes.items() if prod(shape) > 0.2 * sum(map(prod, shapes.values()))]
    for name in wide:
        assert found[name] == pytest.approx(expected[name], rel=1 - STEP**4, abs=0.02)


@every_model
@pytest.mark.parametrize("kind", KINDS)
def test_every_network_meets_its_budget(name: str, kind: str) -> None:
    model, example = small(name).outline()
    cost = network_cost(model, example, kind)
    least = cost.at(dict.fromkeys(cost.layers, SPARSEST))
    if least > 0.97 * cost.dense:
        pytest.skip("zeros save nothing in so small a network")
    budget = wish(kind, cost, 0.5 * (least / cost.dense + 1))
    found = budget_densities(model, example, budget, {})
    assert found.keys() == layer_shapes(model).keys()
    assert all(SPARSEST <= density <= 1 for density in found.values())
    assert cost.at(found) <= limit(parse_budget(budget), cost) * (1 + 1e-6)
    assert min(found.values()) < 1


@every_model
def test_what_cannot_be_met_names_a_closest_that_can(name: str) -> None:
    model, example = small(name).outline()
    with pytest.raises(InputError, match="the budget speedup=1000 cannot be met: the closest is speedup=") as raised:
        budget_densities(model, example, "speedup=1000", {})
    closest = float(str(raised.value).partition("closest is speedup=")[2].partition(",")[0])
    found = budget_densities(model, example, f"speedup={0.99 * closest}", {})
    cost = network_cost(model, example, "speedup")
    assert cost.dense / cost.at(found) >= 0.98 * closest


def test_a_tighter_budget_never_loses_less() -> None:
    model, example = conv_net(), torch.rand(1, 3, 64, 64)
    shapes = layer_shapes(model)
    errors = []
    for speedup in (1.2, 1.5, 2.0, 2.5, 3.0):
        found = budget_densities(model, example, f"speedup={speedup}", {})
        errors.append(sum(sensitivity(shapes[name], density) for name, density in found.items()))
    assert errors == sorted(errors)
    assert errors[0] < errors[-1]


def test_the_work_of_layers_is_that_of_the_exported_network(tmp_path: Path) -> None:
    model, example = conv_net().eval(), torch.rand(1, 3, 64, 64)
    rc.export_onnx(model, example, tmp_path / "net.onnx", encoding="dense")
    graph = onnx.load(tmp_path / "net.onnx")
    layers = [each for each in find_prunable(graph).layers if not each.depthwise]
    exported = time_costs(graph, layers, {graph.graph.input[0].name: example.numpy()})
    own = network_cost(model, example, "latency").layers
    assert len(exported) == 5
    for density in (1.0, 0.5, 0.1, 0.02):
        by_file = sorted(exported[each.name](density) for each in layers)
        by_model = sorted(cost(density) for name, cost in own.items() if name != "2.weight")
        assert np.allclose(by_file, by_model, rtol=1e-6)


def test_zeros_that_save_no_time_are_not_made() -> None:
    found = budget_densities(conv_net(), torch.rand(1, 3, 64, 64), "speedup=2", {})
    assert found["2.weight"] == 1  # depthwise
    assert found["12.weight"] == 1  # too small
    assert found["6.weight"] < 0.6


def test_fixed_layers_keep_their_sparsity_and_the_others_make_up_for_them() -> None:
    model, example = conv_net(), torch.rand(1, 3, 64, 64)
    given = SparsityConfig(distribution="budget", budget="speedup=1.2", dense=("6",), layers={"10": 0.5})
    found = given.fitted(model, example).densities(model)
    free = SparsityConfig(distribution="budget", budget="speedup=1.2").fitted(model, example).densities(model)
    assert (found["6.weight"], found["10.weight"]) == (1, 0.5)
    assert found["4.weight"] < free["4.weight"]
    assert free["6.weight"] < 1


def test_a_sparsifier_takes_an_example() -> None:
    model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen: dict[str, Any] = {"distribution": "budget", "budget": "flops=10K", "total_steps": 100, "interval": 2}
    with pytest.raises(InputError, match="pass example_input to the Sparsifier"):
        rc.Sparsifier(model, optimizer, **chosen)
    sparse = rc.Sparsifier(model, optimizer, example_input=torch.rand(1, 100), **chosen)
    for _ in range(5):
        model(torch.rand(8, 100)).square().mean().backward()
        if not sparse.step():
            optimizer.step()
        optimizer.zero_grad()
    assert sparse.updates
    flops = rc.count_flops(model, torch.rand(1, 100), sparse.topology).sparse
    assert 9_500 <= flops <= 10_000
    assert sparse.config.sparsity == pytest.approx(sparse.topology.sparsity, abs=1e-3)


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"distribution": "budget"}, "needs a budget"),
        ({"distribution": "budget", "budget": "speed=2"}, "of no known kind"),
        ({"budget": "speedup=2"}, 'set distribution = "budget"'),
        ({"budget": "both"}, "unknown budget 'both'"),
    ],
)
def test_settings_that_do_not_go_together(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SparsityConfig(**chosen)


def test_nothing_to_decide_and_nothing_to_narrow() -> None:
    model, example = nn.Linear(100, 10), torch.rand(1, 100)
    every = SparsityConfig(distribution="budget", budget="flops=1K", layers={"weight": 0.5})
    with pytest.raises(InputError, match="nothing to decide"):
        every.fitted(model, example)
    with pytest.raises(InputError, match="narrows the network"):
        SparsityConfig("small-dense", distribution="budget", budget="flops=1K").fitted(model, example)
    dense = SparsityConfig("dense", distribution="budget", budget="flops=1K")
    assert dense.fitted(model, example) == dense


def test_a_sparsity_beside_a_budget_is_said_to_be_idle() -> None:
    model = nn.Linear(100, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen: dict[str, Any] = {"distribution": "budget", "budget": "flops=1K", "total_steps": 100}
    with pytest.warns(UserWarning, match=r"sparsity = 0.5 has no effect: the budget flops=1K decides"):
        rc.Sparsifier(model, optimizer, sparsity=0.5, example_input=torch.rand(1, 100), **chosen)


@pytest.mark.parametrize(
    ("model", "one", "many"),
    [
        (nn.Linear(100, 10), torch.rand(1, 100), torch.rand(8, 100)),
        (nn.Linear(100, 10), {"input": torch.rand(1, 100)}, {"input": torch.rand(8, 100)}),
        (conv_net(), torch.rand(1, 3, 16, 16), torch.rand(4, 3, 16, 16)),
        (nn.GRU(4, 8, batch_first=True), (torch.rand(1, 5, 4),), (torch.rand(3, 5, 4),)),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_budgets_are_those_of_one_sample(model: nn.Module, one: Any, many: Any, kind: str) -> None:
    assert network_cost(model, many, kind).dense == pytest.approx(network_cost(model, one, kind).dense)


def test_samples_without_an_axis_of_their_own_stay_whole() -> None:
    """An image alone, and a sequence whose first axis is time, are not batches."""
    for model, example in ((conv_net(), torch.rand(3, 16, 16)), (nn.GRU(4, 8), torch.rand(5, 1, 4))):
        assert first_sample(model, example) is example


def test_a_budget_that_the_dense_network_meets_is_said_to_be_idle() -> None:
    model, line = nn.Linear(100, 10), "the budget flops=2M is already met by the dense network: nothing is removed"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chosen: dict[str, Any] = {"distribution": "budget", "budget": "flops=2M"}
    with pytest.warns(UserWarning, match=line):
        rc.Sparsifier(model, optimizer, example_input=torch.rand(1, 100), total_steps=100, **chosen)
    config = SparsityConfig(**chosen).fitted(model, torch.rand(1, 100))
    assert budget_lines(config, model, torch.rand(1, 100))[0].endswith(line)


def test_a_recipe_is_trained_within_its_budget(tmp_path: Path) -> None:
    lines: list[str] = []
    data = tiny.write_mnist(tmp_path / "data")
    recipe = tiny.recipe('sparsity.distribution="budget"', 'sparsity.budget="flops=6K"', "train.epochs=1")
    environment = tiny.RunEnvironment(data_dir=data, log=lines.append)
    model = tiny.train(recipe, tmp_path / "run", environment)
    built = model.build()
    counted = rc.count_flops(built, torch.rand(1, 1, 28, 28), model.topology).sparse
    assert 5_700 <= counted <= 6_000
    assert any(line.startswith("budget flops=6K: flops=5,9") for line in lines)
    assert any("sparsity = 0.8 has no effect" in line for line in lines)
    kept = tiny.Run.open(tmp_path / "run").recipe()
    assert (kept.sparsity.budget, dict(kept.sparsity.layers)) == ("flops=6K", {})
    assert model.metrics["target_sparsity"] == pytest.approx(model.topology.sparsity, abs=1e-3)


def test_flops_confirms_a_budget(cli: Cli) -> None:
    given = ["flops", "--recipe", "mnist-demo", "--set", "sparsity.distribution=budget", "--set", "sparsity.layers={}"]
    found = cli(*given, "--set", "sparsity.budget=flops=60K")
    assert "budget flops=60K: flops=59," in found.out
    refused = cli(*given, "--set", "sparsity.budget=flops=6")
    assert refused.code == 2
    assert "the budget flops=6 cannot be met: the closest is flops=" in refused.err
