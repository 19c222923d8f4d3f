"""The training loss between two trained networks (paper, §4.3): on the line, and on curves that were trained to be low.

A curve is a Bézier curve through the space of all weights. Its ends are the two networks, the control points between
them are trained: at every step the loss at a random place of the curve goes down (Garipov et al. 2018). In sparse space
control points have weights only where one of the networks has a connection, in dense space everywhere.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import comb
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rigl_compress.models.artifacts import atomic_path
from rigl_compress.models.errors import InputError
from rigl_compress.models.registry import Registry
from rigl_compress.models.sparse_model import SparseModel, check_weights
from rigl_compress.pipeline.pictures import logarithmic, own_style
from rigl_compress.pipeline.train.data.load import load_dataset
from rigl_compress.pipeline.train.data.samples import Samples
from rigl_compress.pipeline.train.metrics import loss_of
from rigl_compress.pipeline.train.randomness import generator
from rigl_compress.pipeline.train.stage import Circumstances, find_device
from rigl_compress.pipeline.workspace import Run

Weights = Mapping[str, Tensor]
Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Curve:
    """A kind of curve: how many control points lie between its ends, and whether they are sparse."""

    inner: int
    sparse: bool = True


CURVES: Registry[Curve] = Registry("curve")
CURVES.register("linear", Curve(0))
CURVES.register("quadratic", Curve(1))
CURVES.register("cubic", Curve(2))
CURVES.register("quadratic-dense", Curve(1, sparse=False))


@dataclass(frozen=True)
class LandscapeConfig:
    """Which curves, how many points of each, how the control points are trained, and on how many samples one looks."""

    curves: tuple[str, ...] = ("linear", "quadratic", "cubic", "quadratic-dense")
    points: int = 21
    steps: int = 1000
    rate: float = 1e-3
    batch: int = 128
    samples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.curves:
            _ = CURVES[name]
        for name, least in (("points", 2), ("steps", 1), ("batch", 1), ("samples", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}, expected {least} or more")


@dataclass(frozen=True)
class Landscape:
    """The loss at places between 0 (the first network) and 1 (the second), for each curve."""

    places: tuple[float, ...]
    losses: Mapping[str, tuple[float, ...]]

    def barrier(self, curve: str) -> float:
        """Give how far the loss rises above the straight line between the losses of the ends.

        >>> Landscape((0.0, 0.5, 1.0), {"linear": (1.0, 5.0, 2.0)}).barrier("linear")
        3.5
        """
        losses = self.losses[curve]
        ends = [(1 - t) * losses[0] + t * losses[-1] for t in self.places]
        return max(loss - end for loss, end in zip(losses, ends, strict=True))


def bezier(points: Sequence[Weights], t: float) -> dict[str, Tensor]:
    """Give the place t of the Bézier curve with these control points.

    >>> bezier([{"w": torch.tensor(0.0)}, {"w": torch.tensor(3.0)}, {"w": torch.tensor(4.0)}], 0.5)
    {'w': tensor(2.5000)}
    """
    degree = len(points) - 1
    shares = [comb(degree, i) * (1 - t) ** (degree - i) * t**i for i in range(degree + 1)]
    return {
        name: torch.stack([share * point[name] for share, point in zip(shares, points, strict=True)]).sum(0)
        for name in points[0]
    }


def landscape(first: Run, second: Run, config: LandscapeConfig, here: Circumstances, watch: Watch) -> Landscape:
    """Look at the training loss between the networks of two runs. `watch` gets the curve, its step, and all steps."""
    ends = (first.model(), second.model())
    _check_alike(*ends, second)
    recipe, device = first.recipe(), find_device(here.device)
    data = load_dataset(recipe.data.name, here.data_dir, say=here.say, options=recipe.data.options).to(device)
    model = ends[0].build()
    for run, end in zip((first, second), ends, strict=True):
        check_weights(model, end.weights, str(run.path))
        if end.topology.keys() != ends[0].topology.keys():
            raise InputError(f"{run.path} has connections in other layers than {first.path}: train both alike")
    model = model.to(device).train()  # normalisation by the batch: a point of a curve has no statistics
    places = tuple(i / (config.points - 1) for i in range(config.points))
    losses = {}
    for name in config.curves:
        points = control_points(model, ends, CURVES[name].inner)
        if CURVES[name].inner:
            masks = _union(ends) if CURVES[name].sparse else {}
            lower(model, points, masks, data.train, config, partial(watch, name))
        shown = data.train[: config.samples]
        losses[name] = tuple(loss_at(model, bezier(points, t), shown, config.batch) for t in places)
    return Landscape(places, losses)


def _check_alike(one: SparseModel, other: SparseModel, where: Run) -> None:
    if one.spec != other.spec:
        raise InputError(
            f"{where.path} trained {other.spec.name} {dict(other.spec.options)}, the other run {one.spec.name} "
            f"{dict(one.spec.options)}: a path leads between two networks of one kind"
        )


def _union(ends: tuple[SparseModel, SparseModel]) -> dict[str, Tensor]:
    one, other = (end.topology for end in ends)
    return {name: one[name] | other[name] for name in one}


def control_points(model: nn.Module, ends: tuple[SparseModel, SparseModel], inner: int) -> list[dict[str, Tensor]]:
    """Give the ends, and between them points on the line that are to be trained."""
    places = {name: parameter.device for name, parameter in model.named_parameters()}
    fixed = [{name: end.weights[name].to(device) for name, device in places.items()} for end in ends]
    between = [bezier(fixed, (i + 1) / (inner + 1)) for i in range(inner)]
    free = [{name: value.clone().requires_grad_() for name, value in point.items()} for point in between]
    return [fixed[0], *free, fixed[1]]


def lower(
    model: nn.Module,
    points: list[dict[str, Tensor]],
    masks: Mapping[str, Tensor],
    samples: Samples,
    config: LandscapeConfig,
    watch: Callable[[int, int], None],
) -> None:
    """Train the control points between the ends; where there is a mask, only what it marks."""
    free = points[1:-1]
    optimizer = torch.optim.Adam([value for point in free for value in point.values()], lr=config.rate)
    gates = {name: mask.to(free[0][name]) for name, mask in masks.items()}
    draw = generator(config.seed, 0, "places of a curve")
    for step, (x, y) in zip(range(1, config.steps + 1), _endless(samples, config), strict=False):
        optimizer.zero_grad()
        loss = loss_of(_answers(model, bezier(points, float(torch.rand((), generator=draw))), x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        for point in free:
            for name, gate in gates.items():
                point[name].grad.mul_(gate)  # type: ignore[union-attr]
        optimizer.step()
        watch(step, config.steps)


def _endless(samples: Samples, config: LandscapeConfig) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        yield from samples.batches(min(config.batch, len(samples)), generator(config.seed, epoch, "order of the data"))
        epoch += 1


def _answers(model: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # statistics are not to be kept
    answers: Tensor = functional_call(model, {**weights, **buffers}, (x,))
    return answers


@torch.no_grad()
def loss_at(model: nn.Module, weights: Weights, samples: Samples, batch: int) -> float:
    """Give the mean loss of a network with these weights."""
    total, count = 0.0, 0
    for x, y in samples.in_order(batch):
        total += float(loss_of(_answers(model, weights, x), y)) * len(y)
        count += len(y)
    return total / count


def names_apart(one: Path, other: Path) -> tuple[str, str]:
    """Name two run folders by as many of their last parts as tell them apart.

    >>> names_apart(Path("runs/static"), Path("runs/rigl"))
    ('static', 'rigl')
    >>> names_apart(Path("sweep/method=rigl/seed=0"), Path("sweep/method=set/seed=0"))
    ('method=rigl/seed=0', 'method=set/seed=0')
    """
    pairs = ((one.resolve().parts[-count:], other.resolve().parts[-count:]) for count in range(1, 50))
    first, second = next((pair for pair in pairs if pair[0] != pair[1]), (one.parts[-1:], other.parts[-1:]))
    return "/".join(first), "/".join(second)


@own_style()
def landscape_picture(found: Landscape, path: Path, labels: tuple[str, str]) -> None:
    """Draw the loss along every curve, as the paper does."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, losses), style in zip(found.losses.items(), ("-", "--", "-.", ":"), strict=False):
        axes.plot(found.places, losses, style, label=name.replace("-dense", ", dense space"), linewidth=1.8)
    logarithmic(axes)
    axes.set_xlabel(f"{labels[0]} (0) to {labels[1]} (1)")
    axes.set_ylabel("training loss (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")


def to_json(found: Landscape, config: LandscapeConfig) -> dict[str, Any]:
    """Give everything as plain data."""
    barriers = {name: found.barrier(name) for name in found.losses}
    losses = {name: list(each) for name, each in found.losses.items()}
    settings = {"steps": config.steps, "rate": config.rate, "samples": config.samples, "seed": config.seed}
    return {"format": 1, "places": list(found.places), "losses": losses, "barriers": barriers, **settings}
