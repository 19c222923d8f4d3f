"""The table of sparse training methods: what each drops, what it grows, when, how it starts, and what it costs.

A method is a value. To add one, write at most two score functions and register it; the conformance tests do the rest.
Variants are made with `dataclasses.replace`, e.g. RigL that also takes its optimizer step at an update:
`replace(METHODS["rigl"], replaces_step=False)`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.registry import Registry, instance_of
from rigl_compress.sparsity import connection_quotas as quotas
from rigl_compress.sparsity import connection_scores as scores
from rigl_compress.sparsity import training_flops as costs
from rigl_compress.sparsity.layer_state import LayerView, noise_scale
from rigl_compress.sparsity.rewire import best_of_blocks
from rigl_compress.sparsity.schedules import UpdateSchedule
from rigl_compress.sparsity.score_blocks import score_blocks
from rigl_compress.sparsity.structured_methods import GROUP_LASSO, L0, L1_FILTER, SBP, SLIMMING, VIB, Gating

# The initial connections: (view of the fresh layer, number of connections) → flat positions.
Start = Callable[[LayerView, int], Tensor]
# Runs at every step: before gradients are masked, where it may change the gradient and the memory in place; or after
# the step of the optimizer, where it may change the weights and the memory.
Observe = Callable[[LayerView, dict[str, Tensor]], None]
# Whether there is an update at a step.
When = Callable[[UpdateSchedule, int], bool]


def at_random(view: LayerView, count: int) -> Tensor:
    """Exactly `count` connections, uniformly at random."""
    return best_of_blocks(score_blocks(scores.random, view), count)


def strongest(view: LayerView, count: int) -> Tensor:
    """The largest initial weights (DNW)."""
    return best_of_blocks(score_blocks(scores.magnitude, view), count)


def never(schedule: UpdateSchedule, step: int) -> bool:
    """At no step: the topology is fixed."""
    del schedule, step
    return False


def on_schedule(schedule: UpdateSchedule, step: int) -> bool:
    """Every ΔT steps from begin to T_end."""
    return schedule.due(step)


def on_schedule_and_at_end(schedule: UpdateSchedule, step: int) -> bool:
    """Every ΔT steps, and at T_end in any case, so that the final sparsity is reached."""
    return schedule.due(step) or step == schedule.end


def at_first(schedule: UpdateSchedule, step: int) -> bool:
    """Once, at the first step."""
    return step == schedule.begin


def at_end(schedule: UpdateSchedule, step: int) -> bool:
    """Once, at T_end."""
    return step == schedule.end


def at_every_step(schedule: UpdateSchedule, step: int) -> bool:
    """At every step."""
    del schedule, step
    return True


def remember_gradient(view: LayerView, memory: dict[str, Tensor]) -> None:
    """Keep a running mean of the dense gradient (SNFS). A gradient that overflowed (half precision) is skipped."""
    if "momentum" not in memory:
        memory["momentum"] = torch.zeros_like(view.gradient)
    past = memory["momentum"]
    past.lerp_(torch.where(view.gradient.isfinite().all(), view.gradient, past), 1 - view.options["momentum"])


def random_walk(view: LayerView, memory: dict[str, Tensor]) -> None:
    """Add DeepR's pull towards zero and its noise to the gradient; the optimizer step then makes the random walk.

    A new connection draws its sign. One that crossed zero stays at zero until it is replaced.
    """
    sign = memory.get("sign", view.weight.sign())
    drawn = torch.where(view.uniform() < 0.5, -1.0, 1.0).to(view.weight.dtype)
    memory["sign"] = torch.where(sign != 0, sign, drawn)
    memory.setdefault("crossed", torch.zeros_like(view.mask))
    view.gradient.add_(memory["sign"], alpha=view.options["l1"])
    view.gradient.add_(view.noise(), alpha=noise_scale(view.options["temperature"], view.learning_rate))


def stop_at_zero(view: LayerView, memory: dict[str, Tensor]) -> None:
    """Keep a weight at zero once it crossed zero against its sign: the connection is dormant (DeepR)."""
    if "sign" in memory:
        memory["crossed"] |= view.mask & (view.weight * memory["sign"] < 0)
        view.weight.masked_fill_(memory["crossed"], 0)


@dataclass(frozen=True)
class Method:
    """A sparse training method.

    `replaces_step`: the update takes the place of the optimizer step (else it follows the step).
    `straight_through`: all weights are trained behind a sparse forward pass (DNW).
    `keeps_regrown`: a connection dropped and regrown in one update keeps its weight and optimizer state.
    `new_weights`: the initial weights of connections that an update grows; None: zero, as in the paper.
    `constrain`: runs after each step of the optimizer.
    `connection_memory`: the keys of `memory` that belong to single connections, and are reset when one is dropped.
    `narrow`: the network is made narrower instead of sparse (small-dense).
    `gating`: whole units are chosen instead of connections (structured methods).
    `needs_topology`: the topology is not drawn but taken from an earlier run.
    `cost`: training FLOPs per sample; None: they are reported as not counted.
    """

    name: str
    summary: str
    start: Start | None = at_random  # None: every connection
    when: When = never
    drop: scores.Score = scores.magnitude
    grow: scores.Score | None = None
    quota: quotas.Quota = quotas.swap
    observe: Observe | None = None
    constrain: Observe | None = None
    connection_memory: tuple[str, ...] = ()
    replaces_step: bool = False
    straight_through: bool = False
    keeps_regrown: bool = True
    new_weights: scores.Score | None = None
    narrow: bool = False
    dense: bool = False
    gating: Gating | None = None
    needs_topology: bool = False
    cost: costs.Cost | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    def with_options(self, options: Mapping[str, float]) -> "Method":
        """Return the method with other values for its options.

        >>> METHODS["snfs"].with_options({"momentum": 0.99}).options
        {'momentum': 0.99}
        """
        for name in options:
            if name not in self.options:
                known = did_you_mean(name, self.options) if self.options else "it has none"
                raise InputError(f"method {self.name!r} has no option {name!r}: {known}")
        return replace(self, options={**self.options, **options})

    @property
    def counted_cost(self) -> costs.Cost:
        """The training cost; raises for a method that has none."""
        if self.cost is None:
            raise InputError(
                f"method {self.name!r} has no training cost: set Method.cost, e.g. to training_flops.static"
            )
        return self.cost


METHODS: Registry[Method] = Registry("method", group="rigl_compress.methods", adapt=instance_of(Method, "method"))


def register_method(method: Method) -> Method:
    """Register a method under its name."""
    return METHODS.register(method.name, method)


_SNFS = Method(
    "snfs",
    "drop the smallest weights, grow by the momentum of the dense gradient",
    when=on_schedule,
    grow=scores.momentum,
    observe=remember_gradient,
    options={"momentum": 0.9},
    cost=costs.probing,
)
for _method in (
    Method("dense", "every connection, all the time", start=None, dense=True, cost=costs.dense),
    Method(
        "small-dense",
        "a narrower dense network of as many parameters",
        start=None,
        dense=True,
        narrow=True,
        cost=costs.static,
    ),
    Method("static", "a random sparse topology that never changes", cost=costs.static),
    Method(
        "lottery",
        "the final topology of an earlier run with its initial weights, never changed",
        needs_topology=True,
        cost=costs.lottery,
    ),
    Method(
        "snip",
        "dense once, then the connections of the highest saliency, never changed",
        start=None,
        when=at_first,
        drop=scores.saliency,
        quota=quotas.shrink_to_target,
        replaces_step=True,
        cost=costs.snip,
    ),
    Method("set", "drop the smallest weights, grow at random", when=on_schedule, grow=scores.random, cost=costs.static),
    Method(
        "deepr",
        "weights make a random walk; one that crosses zero is replaced at random",
        when=on_schedule,
        drop=scores.not_crossed,
        grow=scores.random,
        quota=quotas.sign_changes,
        observe=random_walk,
        constrain=stop_at_zero,
        connection_memory=("sign", "crossed"),
        keeps_regrown=False,
        options={"l1": 1e-5, "temperature": 1e-11},
        cost=costs.static,
    ),
    Method(
        "dsr",
        "drop the smallest weights of the whole network, grow at random, most where most are left",
        when=on_schedule,
        grow=scores.random,
        quota=quotas.weakest_anywhere,
        cost=costs.static,
    ),
    _SNFS,
    replace(
        _SNFS,
        name="snfs-redistribute",
        summary="SNFS that also moves connections to the layers of high momentum",
        quota=quotas.by_momentum,
    ),
    Method(
        "rigl",
        "drop the smallest weights, grow by the dense gradient of this step",
        when=on_schedule,
        grow=scores.gradient,
        replaces_step=True,
        cost=costs.rigl,
    ),
    Method(
        "pruning",
        "start dense, remove the smallest weights along a cubic schedule",
        start=None,
        when=on_schedule_and_at_end,
        quota=quotas.shrink_gradually,
        cost=costs.pruning,
    ),
    Method(
        "dnw",
        "the largest weights at every step; inactive ones keep learning",
        start=strongest,
        when=at_every_step,
        quota=quotas.shrink_to_target,
        straight_through=True,
        cost=costs.probing,
    ),
):
    register_method(_method)


for _name, _summary, _gating in (
    ("sbp", "structured: log-normal noise on every unit, those without signal removed", SBP),
    ("l0", "structured: hard concrete gates with a penalty for every weight of an open one", L0),
    ("vib", "structured: an information bottleneck after every layer", VIB),
    ("l1-filter", "structured: dense until T_end, then the units of the smallest L1 norm are removed", L1_FILTER),
    ("slimming", "structured: factors under an L1 penalty, at T_end the smallest of the network are removed", SLIMMING),
    ("group-lasso", "structured: the weights of a unit shrink together, to zero exactly", GROUP_LASSO),
):
    register_method(
        Method(
            *(_name, _summary),
            start=None,
            when=at_end,
            dense=True,
            gating=_gating,
            cost=costs.dense,  # units are chosen in the dense network
            options=_gating.options,
        )
    )
