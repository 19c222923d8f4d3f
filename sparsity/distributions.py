"""How the connections are shared out among the layers. Pure: shapes and a density in, densities out."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry, as_callable
from rigl_compress.models.topology import connections

Shapes = Mapping[str, tuple[int, ...]]
Densities = dict[str, float]
Share = Callable[[Shapes, float], Densities]
# (model, example input, budget as it is typed, densities of fixed layers) → densities of all layers
Solve = Callable[[nn.Module, Any, str, Mapping[str, float]], Densities]


@dataclass(frozen=True)
class Distribution:
    """A way to share out connections, and the layers that it leaves dense by default.

    With `solve` it shares out a budget of time, bytes or FLOPs instead of connections.
    """

    name: str
    share: Share
    dense: tuple[str, ...] = ()
    solve: Solve | None = None


def uniform(shapes: Shapes, density: float) -> Densities:
    """Every layer at the same density.

    >>> uniform({"fc1": (300, 784), "fc2": (100, 300)}, 0.25)
    {'fc1': 0.25, 'fc2': 0.25}
    """
    return dict.fromkeys(shapes, density)


def erdos_renyi(shapes: Shapes, density: float) -> Densities:
    """Density in proportion to (n_in + n_out) / (n_in · n_out), kernels left aside (paper, §3 (1)).

    >>> {name: round(1 - value, 5) for name, value in erdos_renyi({"fc1": (300, 784), "fc2": (100, 300)}, 0.1).items()}
    {'fc1': 0.91764, 'fc2': 0.76173}
    """
    return _proportional(shapes, density, {name: sum(shape[:2]) / prod(shape[:2]) for name, shape in shapes.items()})


def erdos_renyi_kernel(shapes: Shapes, density: float) -> Densities:
    """Density in proportion to the sum of all dimensions over their product (paper, §3 (1)).

    >>> lenet = {"fc1": (300, 784), "fc2": (100, 300), "fc3": (10, 100)}
    >>> {name: round(1 - value, 5) for name, value in erdos_renyi_kernel(lenet, 1 - 0.9).items()}
    {'fc1': 0.92043, 'fc2': 0.76981, 'fc3': 0.0}
    """
    return _proportional(shapes, density, {name: sum(shape) / prod(shape) for name, shape in shapes.items()})


def _proportional(shapes: Shapes, density: float, raw: Mapping[str, float]) -> Densities:
    """Solve for ε with density_l = min(1, ε · raw_l) that spends the budget exactly.

    A layer that would be over-full becomes dense and the rest is solved again, all layers of one raw value together;
    clipping instead would lose the overflow.
    """
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    budget = sum(connections(density, size) for size in sizes.values())
    solved: Densities = {}
    while open_ := [name for name in shapes if name not in solved]:
        left = budget - sum(sizes[name] for name in solved)
        epsilon = left / sum(raw[name] * sizes[name] for name in open_)
        largest = max(raw[name] for name in open_)
        if epsilon * largest <= 1:
            return {name: solved.get(name, epsilon * raw[name]) for name in shapes}
        solved |= {name: 1.0 for name in open_ if raw[name] == largest}
    return solved


def _as_distribution(name: str, found: Any) -> Distribution:
    """Return a distribution, or make one of a plain function."""
    return (
        found if isinstance(found, Distribution) else Distribution(name, as_callable(found, f"distribution {name!r}"))
    )


DISTRIBUTIONS: Registry[Distribution] = Registry(
    "distribution",
    group="rigl_compress.distributions",
    adapt=_as_distribution,
    modules=("rigl_compress.pipeline.budget_distribution",),  # it needs the cost model of the runtime
)
for _distribution in (
    # The first layer stays dense: sparsifying it hurts much and saves next to nothing (paper, §3 (1)).
    Distribution("uniform", uniform, dense=("first",)),
    Distribution("er", erdos_renyi),
    Distribution("erk", erdos_renyi_kernel),
):
    DISTRIBUTIONS.register(_distribution.name, _distribution)


def register_distribution(name: str, *, dense: tuple[str, ...] = ()) -> Callable[[Share], Share]:
    """Return a decorator that registers a function from shapes and a density to densities.

    `dense` are the layers that stay dense unless a recipe says otherwise: names, globs, types, "first", "last".
    """

    def decorate(share: Share) -> Share:
        DISTRIBUTIONS.register(name, Distribution(name, share, dense))
        return share

    return decorate


def share_out(shapes: Shapes, density: float, share: Share, fixed: Mapping[str, float], budget: str) -> Densities:
    """Return the density of every layer: `fixed` ones as they are, the rest by `share`.

    `budget` selects what the density is over: "exclude" ignores the fixed layers, as the authors' code does; "include"
    counts them, so that the other layers compensate for what they spend.

    >>> shapes = {"a": (10, 10), "b": (10, 10)}
    >>> share_out(shapes, 0.5, uniform, {"a": 0.9}, "exclude")
    {'a': 0.9, 'b': 0.5}
    >>> {name: round(value, 9) for name, value in share_out(shapes, 0.5, uniform, {"a": 0.9}, "include").items()}
    {'a': 0.9, 'b': 0.1}
    """
    free = {name: shape for name, shape in shapes.items() if name not in fixed}
    if not free:
        return {name: fixed[name] for name in shapes}
    if budget == "include":
        density = _density_left(shapes, density, fixed)
    shared = share(free, density)
    return {name: fixed[name] if name in fixed else shared[name] for name in shapes}


def _density_left(shapes: Shapes, density: float, fixed: Mapping[str, float]) -> float:
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    spent = sum(fixed[name] * sizes[name] for name in fixed)
    wanted, room = density * sum(sizes.values()), sum(size for name, size in sizes.items() if name not in fixed)
    if not 0 < wanted - spent <= room:
        raise InputError(
            f"sparsity {1 - density:.4g} over all layers needs {wanted:,.0f} connections, but the layers of fixed "
            f"sparsity hold {spent:,.0f} and the others have room for {room:,}: change the sparsity, fix fewer "
            'layers, or use budget = "exclude"'
        )
    return (wanted - spent) / room


def fixed_densities(dense: Collection[str], custom: Mapping[str, float]) -> dict[str, float]:
    """Merge dense layers and custom densities; a custom density takes precedence.

    >>> fixed_densities(["a", "b"], {"b": 0.5})
    {'a': 1.0, 'b': 0.5}
    """
    return {**dict.fromkeys(dense, 1.0), **custom}
