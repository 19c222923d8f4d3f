"""The table of sparse training methods: what each drops, what it grows, when, and how it starts.

A method is a value. To add one, write at most two score functions and register it; the conformance tests do the rest.
Variants are made with `dataclasses.replace`, e.g. RigL that also takes its optimizer step at an update:
`replace(METHODS["rigl"], replaces_step=False)`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.registry import Registry
from rigl_compress.pipeline.train import quotas, scores
from rigl_compress.pipeline.train.layer import View, noise_scale
from rigl_compress.pipeline.train.rewire import best
from rigl_compress.pipeline.train.schedules import UpdateSchedule
from rigl_compress.pipeline.train.structured import GROUP_LASSO, L0, L1_FILTER, SBP, SLIMMING, VIB, Gating

# Where the connections are to begin with: (view of the fresh layer, number of connections) → flat positions.
Start = Callable[[View, int], Tensor]
# What happens at every step, before dead gradients are masked: it may change the gradient and the memory in place; or
# after the step of the optimizer, where it may change the weights and the memory.
Observe = Callable[[View, dict[str, Tensor]], None]
# Whether there is an update at a step.
When = Callable[[UpdateSchedule, int], bool]


def at_random(view: View, count: int) -> Tensor:
    """Exactly `count` connections, uniformly at random."""
    return best(view.uniform(), count)


def strongest(view: View, count: int) -> Tensor:
    """The largest initial weights (DNW)."""
    return best(view.weight.abs(), count)


def never(schedule: UpdateSchedule, step: int) -> bool:
    """Say no: the topology is fixed."""
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
    """Always."""
    del schedule, step
    return True


def remember_gradient(view: View, memory: dict[str, Tensor]) -> None:
    """Keep a running mean of the dense gradient (SNFS). One that overflowed (half precision) is not remembered."""
    if "momentum" not in memory:
        memory["momentum"] = torch.zeros_like(view.gradient)
    past = memory["momentum"]
    past.lerp_(torch.where(view.gradient.isfinite().all(), view.gradient, past), 1 - view.options["momentum"])


def random_walk(view: View, memory: dict[str, Tensor]) -> None:
    """Add DeepR's pull towards zero and its noise to the gradient; the optimizer step then takes the walk.

    A connection without a sign, as every new one is, draws one. One that crossed zero rests until it is replaced.
    """
    sign = memory.get("sign", view.weight.sign())
    drawn = torch.where(view.uniform() < 0.5, -1.0, 1.0).to(view.weight.dtype)
    memory["sign"] = torch.where(sign != 0, sign, drawn)
    memory.setdefault("crossed", torch.zeros_like(view.mask))
    view.gradient.add_(memory["sign"], alpha=view.options["l1"])
    view.gradient.add_(view.noise(), alpha=noise_scale(view.options["temperature"], view.learning_rate))


def stop_at_zero(view: View, memory: dict[str, Tensor]) -> None:
    """Hold a weight at zero from where it crossed it against its sign: the connection is dormant (DeepR)."""
    if "sign" in memory:
        memory["crossed"] |= view.mask & (view.weight * memory["sign"] < 0)
        view.weight.masked_fill_(memory["crossed"], 0)


@dataclass(frozen=True)
class Method:
    """A sparse training method.

    `replaces_step`: the update takes the place of the optimizer step (else it follows the step).
    `straight_through`: dead weights live on unseen and receive gradients (DNW).
    `keeps_regrown`: a connection dropped and regrown in one update keeps its weight and optimizer state.
    `birth`: the weights of really new connections; None is the paper's zero.
    `constrain`: done after each step of the optimizer.
    `own`: names of what is remembered of a single connection, and forgotten with it.
    `narrow`: the network is made narrower instead of sparse (small-dense).
    `gating`: whole units are chosen instead of connections (structured methods).
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
    own: tuple[str, ...] = ()
    replaces_step: bool = False
    straight_through: bool = False
    keeps_regrown: bool = True
    birth: scores.Score | None = None
    narrow: bool = False
    dense: bool = False
    gating: Gating | None = None
    options: Mapping[str, float] = field(default_factory=dict)

    def with_options(self, options: Mapping[str, float]) -> "Method":
        """Give the method with other values for its options.

        >>> METHODS["snfs"].with_options({"momentum": 0.99}).options
        {'momentum': 0.99}
        """
        for name in options:
            if name not in self.options:
                known = did_you_mean(name, self.options) if self.options else "it has none"
                raise InputError(f"method {self.name!r} has no option {name!r}: {known}")
        return replace(self, options={**self.options, **options})


METHODS: Registry[Method] = Registry("method")
for _method in (
    Method("dense", "every connection, all the time", start=None, dense=True),
    Method("small-dense", "a narrower dense network of as many parameters", start=None, dense=True, narrow=True),
    Method("static", "a random sparse topology that never changes"),
    Method("lottery", "the final topology of an earlier run with its initial weights, never changed"),
    Method(
        "snip",
        "dense once, then the connections of the highest saliency, never changed",
        start=None,
        when=at_first,
        drop=scores.saliency,
        quota=quotas.shrink_to_target,
        replaces_step=True,
    ),
    Method("set", "drop the smallest weights, grow at random", when=on_schedule, grow=scores.chance),
    Method(
        "deepr",
        "weights walk at random; one that crosses zero is replaced at random",
        when=on_schedule,
        drop=scores.standing,
        grow=scores.chance,
        quota=quotas.sign_changes,
        observe=random_walk,
        constrain=stop_at_zero,
        own=("sign", "crossed"),
        keeps_regrown=False,
        options={"l1": 1e-5, "temperature": 1e-11},
    ),
    Method(
        "dsr",
        "drop the smallest weights of the whole network, grow at random where much survives",
        when=on_schedule,
        grow=scores.chance,
        quota=quotas.weakest_anywhere,
    ),
    Method(
        "snfs",
        "drop the smallest weights, grow by the momentum of the dense gradient",
        when=on_schedule,
        grow=scores.momentum,
        observe=remember_gradient,
        options={"momentum": 0.9},
    ),
    Method(
        "snfs-redistribute",
        "SNFS that also moves connections to the layers of high momentum",
        when=on_schedule,
        grow=scores.momentum,
        quota=quotas.by_momentum,
        observe=remember_gradient,
        options={"momentum": 0.9},
    ),
    Method(
        "rigl",
        "drop the smallest weights, grow by the dense gradient of this step",
        when=on_schedule,
        grow=scores.gradient,
        replaces_step=True,
    ),
    Method(
        "pruning",
        "start dense, remove the smallest weights along a cubic schedule",
        start=None,
        when=on_schedule_and_at_end,
        quota=quotas.shrink_gradually,
    ),
    Method(
        "dnw",
        "the largest weights at every step; dead ones keep learning unseen",
        start=strongest,
        when=at_every_step,
        quota=quotas.shrink_to_target,
        straight_through=True,
    ),
):
    METHODS.register(_method.name, _method)


for _name, _summary, _gating in (
    ("sbp", "structured: log-normal noise on every unit, those without signal removed", SBP),
    ("l0", "structured: hard concrete gates that pay for every weight behind an open one", L0),
    ("vib", "structured: an information bottleneck behind every layer", VIB),
    ("l1-filter", "structured: dense until T_end, then the units of the smallest L1 norm are removed", L1_FILTER),
    ("slimming", "structured: factors under an L1 penalty, at T_end the smallest of the network are removed", SLIMMING),
    ("group-lasso", "structured: the weights of a unit shrink together, to zero exactly", GROUP_LASSO),
):
    METHODS.register(
        _name,
        Method(_name, _summary, start=None, when=at_end, dense=True, gating=_gating, options=_gating.options),
    )


# What other implementations do differently from the paper and its authors' code, by name, for comparisons.
VARIANTS: Registry[Callable[[Method], Method]] = Registry("variant")


def step_and_update(method: Method) -> Method:
    """Take the optimizer step too, and update after it."""
    return replace(method, replaces_step=False)


def round_up(method: Method) -> Method:
    """Replace ⌈n · f⌉ connections, at least one."""
    return replace(method, quota=quotas.swap_rounding_up)


def reset_regrown(method: Method) -> Method:
    """A connection dropped and regrown in one update starts at zero, as if it were new."""
    return replace(method, keeps_regrown=False)


def born_random(method: Method) -> Method:
    """New connections start at random weights as large as the living ones."""
    return replace(method, birth=scores.like_the_living)


def born_along_gradient(method: Method) -> Method:
    """New connections start with a step of `birth_scale` against the gradient."""
    return replace(method, birth=scores.down_the_gradient, options={**method.options, "birth_scale": 1e-3})


for _variant in (step_and_update, round_up, reset_regrown, born_random, born_along_gradient):
    VARIANTS.register(_variant.__name__.replace("_", "-"), _variant)


def find_method(name: str, options: Mapping[str, float], variants: Iterable[str]) -> Method:
    """Look a method up, in the variants and with the options asked for.

    >>> find_method("rigl", {}, ["reset-regrown"]).keeps_regrown
    False
    """
    method = METHODS[name]
    for variant in variants:
        method = VARIANTS[variant](method)
    return method.with_options(options)
