"""The training loss between two trained networks (paper, §4.3): on the line, and on curves trained for a low loss.

A curve is a Bézier curve in the space of all weights. Its ends are the two networks; the control points between them
are trained on the loss at a random position of the curve (Garipov et al. 2018). In sparse space the control points have
weights only where one of the networks has an active connection, in dense space everywhere.
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

from rigl_compress.core.artifacts import atomic_path
from rigl_compress.core.errors import InputError
from rigl_compress.core.random_generators import generator
from rigl_compress.core.registry import Registry
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.data.samples import Samples
from rigl_compress.models.sparse_model import SparseModel, check_weights
from rigl_compress.pipeline.metrics import loss_of
from rigl_compress.pipeline.run_plots import logarithmic, own_style
from rigl_compress.pipeline.train.device_choice import find_device
from rigl_compress.pipeline.train.stage import RunEnvironment
from rigl_compress.pipeline.workspace import Run

Weights = Mapping[str, Tensor]
Listener = Callable[[str, int, int], None]  # curve, step, number of steps


@dataclass(frozen=True)
class Curve:
    """A kind of curve: the number of control points between its ends, and whether they are sparse."""

    inner: int
    sparse: bool = True


CURVES: Registry[Curve] = Registry("curve")
CURVES.register("linear", Curve(0))
CURVES.register("quadratic", Curve(1))
CURVES.register("cubic", Curve(2))
CURVES.register("quadratic-dense", Curve(1, sparse=False))


@dataclass(frozen=True)
class LandscapeConfig:
    """The curves, the number of positions on each, the training of the control points, and the samples of the loss."""

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
    """The loss at positions between 0 (the first network) and 1 (the second), for each curve."""

    positions: tuple[float, ...]
    losses: Mapping[str, tuple[float, ...]]

    def barrier(self, curve: str) -> float:
        """Return how far the loss rises above the straight line between the losses of the ends.

        >>> Landscape((0.0, 0.5, 1.0), {"linear": (1.0, 5.0, 2.0)}).barrier("linear")
        3.5
        """
        losses = self.losses[curve]
        ends = [(1 - t) * losses[0] + t * losses[-1] for t in self.positions]
        return max(loss - end for loss, end in zip(losses, ends, strict=True))


def bezier(points: Sequence[Weights], t: float) -> dict[str, Tensor]:
    """Return position t of the Bézier curve with these control points.

    >>> bezier([{"w": torch.tensor(0.0)}, {"w": torch.tensor(3.0)}, {"w": torch.tensor(4.0)}], 0.5)
    {'w': tensor(2.5000)}
    """
    degree = len(points) - 1
    shares = [comb(degree, i) * (1 - t) ** (degree - i) * t**i for i in range(degree + 1)]
    return {
        name: torch.stack([share * point[name] for share, point in zip(shares, points, strict=True)]).sum(0)
        for name in points[0]
    }


def landscape(
    first: Run, second: Run, config: LandscapeConfig, run_environment: RunEnvironment, listener: Listener
) -> Landscape:
    """Compute the training loss between the networks of two runs; `listener` follows the training of the curves."""
    ends = (first.model(), second.model())
    _check_ends((first, second), ends)
    recipe, device = first.recipe(), find_device(run_environment.device)
    data = load_dataset(
        recipe.data.name, run_environment.data_dir, log=run_environment.log, options=recipe.data.options
    ).to(device)
    model = ends[0].build().to(device).train()  # normalize by the batch: a position of a curve has no statistics
    positions = tuple(i / (config.points - 1) for i in range(config.points))
    losses = {}
    for name in config.curves:
        points = control_points(model, ends, CURVES[name].inner)
        if CURVES[name].inner:
            masks = _union(ends) if CURVES[name].sparse else {}
            train_curve(model, points, masks, data.train, config, partial(listener, name))
        shown = data.train[: config.samples]
        losses[name] = tuple(loss_at(model, bezier(points, t), shown, config.batch) for t in positions)
    return Landscape(positions, losses)


def _check_ends(runs: tuple[Run, Run], ends: tuple[SparseModel, SparseModel]) -> None:
    (first, second), (one, other) = runs, ends
    if one.spec != other.spec:
        raise InputError(
            f"{second.path} trained {other.spec.name} {dict(other.spec.options)}, the other run {one.spec.name} "
            f"{dict(one.spec.options)}, expected the same model: use two runs of one model"
        )
    check_weights(one.build(), other.weights, str(second.path))
    if one.topology.keys() != other.topology.keys():
        raise InputError(f"{second.path} and {first.path} differ in their sparse layers: train both alike")


def _union(ends: tuple[SparseModel, SparseModel]) -> dict[str, Tensor]:
    one, other = (end.topology for end in ends)
    return {name: one[name] | other[name] for name in one}


def control_points(model: nn.Module, ends: tuple[SparseModel, SparseModel], inner: int) -> list[dict[str, Tensor]]:
    """Return the two ends and, between them, control points on the line, to be trained."""
    devices = {name: parameter.device for name, parameter in model.named_parameters()}
    fixed = [{name: end.weights[name].to(device) for name, device in devices.items()} for end in ends]
    between = [bezier(fixed, (i + 1) / (inner + 1)) for i in range(inner)]
    free = [{name: value.clone().requires_grad_() for name, value in point.items()} for point in between]
    return [fixed[0], *free, fixed[1]]


def train_curve(
    model: nn.Module,
    points: list[dict[str, Tensor]],
    masks: Mapping[str, Tensor],
    samples: Samples,
    config: LandscapeConfig,
    listener: Callable[[int, int], None],
) -> None:
    """Train the control points between the ends; where there is a mask, only its connections."""
    free = points[1:-1]
    optimizer = torch.optim.Adam([value for point in free for value in point.values()], lr=config.rate)
    gates = {name: mask.to(free[0][name]) for name, mask in masks.items()}
    draw = generator(config.seed, 0, "places of a curve")
    for step, (x, y) in zip(range(1, config.steps + 1), _endless_batches(samples, config), strict=False):
        optimizer.zero_grad()
        loss = loss_of(_outputs(model, bezier(points, float(torch.rand((), generator=draw))), x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        for point in free:
            for name, gate in gates.items():
                point[name].grad.mul_(gate)  # type: ignore[union-attr]
        optimizer.step()
        listener(step, config.steps)


def _endless_batches(samples: Samples, config: LandscapeConfig) -> Iterator[tuple[Tensor, Tensor]]:
    epoch = 0
    while True:
        yield from samples.batches(min(config.batch, len(samples)), generator(config.seed, epoch, "order of the data"))
        epoch += 1


def _outputs(model: nn.Module, weights: Weights, x: Tensor) -> Tensor:
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # statistics are not kept
    outputs: Tensor = functional_call(model, {**weights, **buffers}, (x,))
    return outputs


@torch.no_grad()
def loss_at(model: nn.Module, weights: Weights, samples: Samples, batch: int) -> float:
    """Return the mean loss of a network with these weights."""
    total, count = 0.0, 0
    for x, y in samples.in_order(batch):
        total += float(loss_of(_outputs(model, weights, x), y)) * len(y)
        count += len(y)
    return total / count


def distinct_names(one: Path, other: Path) -> tuple[str, str]:
    """Return names of two run folders: as many of their last parts as differ.

    >>> distinct_names(Path("runs/static"), Path("runs/rigl"))
    ('static', 'rigl')
    >>> distinct_names(Path("sweep/method=rigl/seed=0"), Path("sweep/method=set/seed=0"))
    ('method=rigl/seed=0', 'method=set/seed=0')
    """
    pairs = ((one.resolve().parts[-count:], other.resolve().parts[-count:]) for count in range(1, 50))
    first, second = next((pair for pair in pairs if pair[0] != pair[1]), (one.parts[-1:], other.parts[-1:]))
    return "/".join(first), "/".join(second)


@own_style()
def landscape_picture(found: Landscape, path: Path, labels: tuple[str, str]) -> None:
    """Draw the loss along every curve, as the paper's figure does."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for (name, losses), style in zip(found.losses.items(), ("-", "--", "-.", ":"), strict=False):
        axes.plot(found.positions, losses, style, label=name.replace("-dense", ", dense space"), linewidth=1.8)
    logarithmic(axes)
    axes.set_xlabel(f"{labels[0]} (0) to {labels[1]} (1)")
    axes.set_ylabel("training loss (logarithmic)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")


def to_json(found: Landscape, config: LandscapeConfig) -> dict[str, Any]:
    """Return plain JSON values."""
    barriers = {name: found.barrier(name) for name in found.losses}
    losses = {name: list(each) for name, each in found.losses.items()}
    settings = {"steps": config.steps, "rate": config.rate, "samples": config.samples, "seed": config.seed}
    return {"format": 1, "positions": list(found.positions), "losses": losses, "barriers": barriers, **settings}
