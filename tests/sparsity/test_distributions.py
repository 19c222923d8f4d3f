import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import densities, networks, perceptrons

from rigl_compress.core.errors import InputError
from rigl_compress.models.topology import connections
from rigl_compress.sparsity.distributions import (
    DISTRIBUTIONS,
    erdos_renyi,
    erdos_renyi_kernel,
    share_out,
    uniform,
)

GOLDEN = Path(__file__).parents[1] / "golden"
LENET = {"fc1": (300, 784), "fc2": (100, 300), "fc3": (10, 100)}
Shapes = Mapping[str, tuple[int, ...]]


def resnet50_shapes() -> dict[str, tuple[int, ...]]:
    """The 54 weights of ResNet-50, under the names of the published notebook."""
    shapes: dict[str, tuple[int, ...]] = {"conv1": (64, 3, 7, 7)}
    inputs = 64
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True), start=2):
        for block in range(blocks):
            name = f"res{stage}{chr(ord('a') + block)}"
            shapes[f"{name}_branch2a"] = (width, inputs, 1, 1)
            shapes[f"{name}_branch2b"] = (width, width, 3, 3)
            shapes[f"{name}_branch2c"] = (4 * width, width, 1, 1)
            if block == 0:
                shapes[f"{name}_branch1"] = (4 * width, inputs, 1, 1)
            inputs = 4 * width
    return shapes | {"fc1000": (1000, inputs)}


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        (0.9, (0.92043, 0.76981, 0.0)),
        (0.95, (0.96152, 0.88867, 0.08149)),
        (0.98, (0.98461, 0.95547, 0.6326)),
        (0.99, (0.9923, 0.97773, 0.8163)),
    ],
)
def test_erk_of_lenet(sparsity: float, expected: tuple[float, ...]) -> None:
    found = [1 - density for density in erdos_renyi_kernel(LENET, 1 - sparsity).values()]
    assert found == pytest.approx(expected, abs=6e-6)


@pytest.mark.parametrize("sparsity", ["0.8", "0.9"])
def test_erk_of_resnet50_is_the_published_one(sparsity: str) -> None:
    expected = json.loads((GOLDEN / "resnet50_erk.json").read_text())[sparsity]
    found = erdos_renyi_kernel(resnet50_shapes(), 1 - float(sparsity))
    assert {name: 1 - density for name, density in found.items()} == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("sparsity", "nonzeros"), [(0.8, 5_100_630), (0.9, 2_550_353)])
def test_connections_of_resnet50_erk(sparsity: float, nonzeros: int) -> None:
    shapes = resnet50_shapes()
    found = erdos_renyi_kernel(shapes, 1 - sparsity)
    assert sum(connections(found[name], prod(shape)) for name, shape in shapes.items()) == nonzeros


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@given(shapes=networks, density=densities)
def test_spends_the_budget_exactly_and_stays_within_bounds(name: str, shapes: Shapes, density: float) -> None:
    found = DISTRIBUTIONS[name].share(shapes, density)
    budget = sum(connections(density, prod(shape)) for shape in shapes.values())
    spent = sum(found[layer] * prod(shape) for layer, shape in shapes.items())
    slack = len(shapes)  # uniform spends the fraction itself, the others whole connections
    assert abs(spent - budget) <= (slack if len(set(found.values())) < 2 else 1e-6 * budget)
    assert all(0 <= value <= 1 + 1e-12 for value in found.values())


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@given(shapes=networks, low=densities, high=densities)
def test_more_density_takes_from_no_layer(name: str, shapes: Shapes, low: float, high: float) -> None:
    low, high = min(low, high), max(low, high)
    sparse, dense = (DISTRIBUTIONS[name].share(shapes, density) for density in (low, high))
    assert all(sparse[layer] <= dense[layer] + 1e-9 for layer in shapes)


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@given(shapes=networks, density=densities)
def test_the_order_of_layers_plays_no_part(name: str, shapes: Shapes, density: float) -> None:
    turned = dict(reversed(list(shapes.items())))
    share = DISTRIBUTIONS[name].share
    assert share(shapes, density) == pytest.approx(share(turned, density))


@given(shapes=perceptrons, density=densities)
def test_er_and_erk_agree_without_kernels(shapes: Shapes, density: float) -> None:
    assert erdos_renyi(shapes, density) == pytest.approx(erdos_renyi_kernel(shapes, density))


@given(shapes=networks, density=densities, fixed=st.floats(0, 1))
def test_including_the_fixed_layers_reaches_the_sparsity_over_all(shapes: Shapes, density: float, fixed: float) -> None:
    first = next(iter(shapes))
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    total, left = sum(sizes.values()), sum(sizes.values()) - sizes[first]
    assume(left and 0 < density * total - fixed * sizes[first] <= left)
    found = share_out(shapes, density, uniform, {first: fixed}, "include")
    assert sum(found[name] * sizes[name] for name in shapes) == pytest.approx(density * total)


def test_a_target_that_cannot_be_reached() -> None:
    with pytest.raises(InputError, match=r"needs 2,662 connections.*hold 235,200"):
        share_out(LENET, 0.01, erdos_renyi_kernel, {"fc1": 1.0}, "include")
