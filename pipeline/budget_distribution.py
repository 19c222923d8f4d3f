"""The distribution "budget": densities for a time, a size or a number of FLOPs, fixed before the first step.

What a layer loses is not known before training. `sensitivity` stands for it: the error of a layer of shape (a, b, …) at
density d is taken as (a + b + …)² / (a · b · …) · (1 / d - 1). The second factor is the squared error, relative to the
outputs, of a random share d of the connections, scaled by 1 / d. With the first, the least error for a number of
connections is at d ∝ (a + b + …) / (a · b · …), the Erdős-Rényi-kernel distribution: a budget of time, bytes or FLOPs
changes only what a connection costs.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Any

from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.core.wording import percent
from rigl_compress.models.flop_counter import layer_uses
from rigl_compress.models.layer_flops import LayerUse
from rigl_compress.models.nested_tensors import tensors_in
from rigl_compress.models.plain_layers import with_plain_layers
from rigl_compress.models.sparse_parameters import layer_shapes, sparse_layers
from rigl_compress.runtime.cost_model import Work, layer_time
from rigl_compress.runtime.cost_tables import coefficients
from rigl_compress.sparsity.budget_solver import Candidate, choose, without_idle_zeros
from rigl_compress.sparsity.budgets import TIMES, Budget, Cost, byte_cost, parse_budget
from rigl_compress.sparsity.distributions import DISTRIBUTIONS, Densities, Distribution, erdos_renyi_kernel
from rigl_compress.sparsity.sparsity_config import SparsityConfig

SPARSEST = 0.005
STEP = 0.97  # from one density of a layer to the next
_VALUE = 4  # bytes
_NANOSECONDS = 1e9
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class NetworkCost:
    """What each layer costs at a density, and all that has no density: nanoseconds, bytes or FLOPs."""

    layers: Mapping[str, Cost]
    rest: float

    def at(self, densities: Mapping[str, float]) -> float:
        """Return the cost of the network."""
        return self.rest + sum(cost(densities[name]) for name, cost in self.layers.items())

    @property
    def dense(self) -> float:
        """The cost of the dense network."""
        return self.at(dict.fromkeys(self.layers, 1.0))


def sensitivity(shape: tuple[int, ...], density: float) -> float:
    """Return what a layer is taken to lose at a density, without training.

    >>> sensitivity((100, 100), 1.0), sensitivity((100, 100), 0.5)
    (0.0, 4.0)
    """
    return sum(shape) ** 2 / prod(shape) * (1 / density - 1)


def budget_densities(model: nn.Module, example_input: Any, budget: str, fixed: Mapping[str, float]) -> Densities:
    """Return the densities of layers that lose least within a budget; `fixed` layers have theirs.

    >>> model = nn.Sequential(nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 10))
    >>> import torch
    >>> found = budget_densities(model, torch.rand(1, 784), "flops=48K", {})
    >>> {name: round(each, 2) for name, each in found.items()}
    {'0.weight': 0.09, '2.weight': 1.0}
    """
    wish = parse_budget(budget)
    cost, shapes = network_cost(model, example_input, wish.kind), layer_shapes(model)
    spent = cost.rest + sum(cost.layers[name](density) for name, density in fixed.items())
    candidates = {name: _candidates(shape, cost.layers[name]) for name, shape in shapes.items() if name not in fixed}
    if not candidates:
        raise InputError(
            f"the budget {budget} has nothing to decide: every layer has a sparsity of its own; remove sparsity.layers "
            "and sparsity.dense, or choose another distribution"
        )
    found = choose(candidates, limit(wish, cost) - spent)
    densities = {name: fixed[name] if name in fixed else found.densities[name] for name in shapes}
    if not found.met:
        closest = figure(wish.kind, cost, densities)
        raise InputError(
            f"the budget {budget} cannot be met: the closest is {wish.kind}={closest}, with {SPARSEST:.1%} of the "
            "connections in every layer that gains from it"
        )
    return densities


def _candidates(shape: tuple[int, ...], cost: Cost) -> list[Candidate]:
    steps = int(log(SPARSEST) / log(STEP))
    densities = [*(STEP**step for step in range(steps + 1)), SPARSEST]
    return without_idle_zeros([Candidate(each, cost(each), sensitivity(shape, each)) for each in densities])


def limit(budget: Budget, cost: NetworkCost) -> float:
    """Return what the network may cost."""
    if budget.kind == "speedup":
        return cost.dense / budget.value
    return budget.value * _NANOSECONDS if budget.kind == "latency" else budget.value


def figure(kind: str, cost: NetworkCost, densities: Mapping[str, float]) -> str:
    """Return what densities come to, in the words of a budget."""
    found = cost.at(densities)
    words = {"speedup": f"{cost.dense / found:.3g}", "latency": f"{found / 1e6:.3g}ms", "size": f"{found / 1e3:,.1f}kB"}
    return words.get(kind, f"{found:,.0f}")


def budget_lines(config: SparsityConfig, model: nn.Module, example_input: Any) -> tuple[str, ...]:
    """Return what the densities of a budget come to; nothing for other distributions."""
    if not config.solves or config.rule.dense:
        return ()
    kind = parse_budget(config.budget).kind
    found = figure(kind, network_cost(model, example_input, kind), config.densities(model))
    removed = percent(config.sparsity)
    line = f"budget {config.budget}: {kind}={found} predicted, with {removed} of the connections removed"
    return ("; ".join((line, *config.met_already())),)


def network_cost(model: nn.Module, example_input: Any, kind: str) -> NetworkCost:
    """Return what layers cost, of one run of a network on the first sample of an example input."""
    plain = with_plain_layers(model)
    example_input = first_sample(model, example_input)
    if kind == "size":
        return _bytes(plain)
    whole: dict[str, list[Cost]] = {}
    rest = 0.0
    for use, times in Counter(layer_uses(plain, example_input)).items():
        cost = _time(plain, use, times) if kind in TIMES else _flops(use, times)
        whole.setdefault(use.parameter, []).append(cost)
        rest += times * _products(use, kind)
    own = {name: _share(plain, name, whole) for name in sparse_layers(plain)}
    reached = {key for name, part in sparse_layers(plain).items() for key in (name, part.parameter)}
    rest += sum(cost(1.0) for key, costs in whole.items() if key not in reached for cost in costs)
    return NetworkCost(own, rest)


def first_sample(model: nn.Module, example_input: Any) -> Any:
    """Return the first sample of a batch; as it is where samples are not along the first axis of every input.

    >>> import torch
    >>> [first_sample(model, torch.rand(8, 1, 4)).shape[0] for model in (nn.Linear(4, 6), nn.GRU(4, 6))]
    [1, 8]
    """
    if any(getattr(module, "batch_first", True) is False for module in model.modules()):
        return example_input
    axes = max((each.ndim for each in tensors_in(example_input)), default=0)
    lengths = {len(each) for each in tensors_in(example_input) if each.ndim}
    return _cut(example_input) if len(lengths) == 1 and axes >= _axes(model) else example_input


def _axes(model: nn.Module) -> int:
    """Return how many axes a batch has at least: convolutions and linear layers take a sample without its axis, too."""
    windows = [len(each.kernel_size) for each in model.modules() if isinstance(each, _CONVOLUTIONS)]
    return 2 + max(windows, default=0)


def _cut(value: Any) -> Any:
    """Return the first entry of every tensor, in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value[:1] if value.ndim else value
    if isinstance(value, Mapping):
        return {name: _cut(each) for name, each in value.items()}
    return type(value)(map(_cut, value)) if type(value) in (tuple, list) else value


def _share(model: nn.Module, name: str, whole: Mapping[str, list[Cost]]) -> Cost:
    """Return the cost of a layer: of its parameter, or of its part of one, as of a gate."""
    part, shapes = sparse_layers(model)[name], layer_shapes(model)
    costs, share = whole.get(name), 1.0
    if costs is None:
        costs = whole.get(part.parameter, [])
        share = prod(shapes[name]) / model.get_parameter(part.parameter).numel()
    return lambda density: share * sum(cost(density) for cost in costs)


def _bytes(model: nn.Module) -> NetworkCost:
    sizes = {name: prod(shape) for name, shape in layer_shapes(model).items()}
    values = sum(each.numel() for each in model.state_dict().values() if each.is_floating_point())
    return NetworkCost({name: byte_cost(size) for name, size in sizes.items()}, _VALUE * (values - sum(sizes.values())))


def _flops(use: LayerUse, times: int) -> Cost:
    return lambda density: 2 * density * use.weights * use.positions * times


def _products(use: LayerUse, kind: str) -> float:
    """Return the cost of products of activations, which are never sparse."""
    if kind not in TIMES:
        return 2.0 * use.products
    return coefficients()["batched"]["dense"]["products"] * use.products


def _time(model: nn.Module, use: LayerUse, calls: int) -> Cost:
    """Return the predicted time of a use of a weight; zeros gain nothing where the runtime has no kernel for them."""
    work, steps, gains = _work(model, use)
    return lambda density: calls * steps * layer_time(work, density if gains else 1.0)


def _work(model: nn.Module, use: LayerUse) -> tuple[Work, int, bool]:
    """Return the work of a use of a weight, how often it is done one after the other, and whether zeros save time."""
    rows = max(use.channels, 1)
    sizes = {"rows": rows, "columns": use.weights // rows, "weights": use.weights, "nonzeros": use.weights}
    if use.kind == "recurrent":  # a step waits for the one before
        return Work(**sizes, images=0), use.positions, True
    if use.kind != "conv":
        return Work(**sizes, pixels=max(use.positions, 1), images=0), int(use.positions > 0), use.kind == "linear"
    layer: Any = model.get_submodule(use.name) if use.name in dict(model.named_modules()) else model
    taps, stride = prod(layer.kernel_size), max(layer.stride)
    if taps == use.positions == 1:  # computed as a product
        return Work(**sizes, images=0), 1, True
    depthwise = layer.groups > 1 and layer.in_channels == layer.groups == layer.out_channels
    whole = sizes | {"columns": sizes["columns"] * layer.groups}
    gains = not depthwise and len(layer.kernel_size) < 3
    return Work(**whole, taps=taps, pixels=use.positions, stride=stride), 1, gains


DISTRIBUTIONS.register("budget", Distribution("budget", erdos_renyi_kernel, solve=budget_densities))
