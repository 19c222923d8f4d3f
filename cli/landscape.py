"""rigl-compress landscape"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import OneOf

_CURVES = ("linear", "quadratic", "cubic", "quadratic-dense")  # of a registry that imports torch


@click.command()
@click.argument("first", metavar="RUN1", type=options.PATH)
@click.argument("second", metavar="RUN2", type=options.PATH)
@options.option(
    "--between",
    "curves",
    multiple=True,
    type=OneOf("curve", _CURVES),
    show_default="all",
    help="Curve between the runs to evaluate.",
)
@options.option("--points", metavar="N", default=21, show_default=True, help="Points per curve.")
@options.option("--steps", metavar="N", default=1000, show_default=True, help="Training steps per curve.")
@options.option("--rate", metavar="RATE", default=1e-3, show_default=True, help="Learning rate of the curves.")
@options.option(
    "--samples", metavar="N", default=10_000, show_default=True, help="Training samples to evaluate the loss on."
)
@options.png
@options.data_dir
@options.device
@options.trust_code
@options.as_json
def command(
    first: Path,
    second: Path,
    curves: tuple[str, ...],
    points: int,
    steps: int,
    rate: float,
    samples: int,
    png: Path | None,
    data_dir: Path | None,
    device: str,
    as_json: bool,
) -> None:
    """Evaluate the training loss between two trained networks, along a line and along trained curves.

    \b
    Example:
      rigl-compress landscape runs/pruning runs/static --png landscape.png
    """
    from rigl_compress.cli import _render
    from rigl_compress.experiments.loss_landscape import (
        CURVES,
        LandscapeConfig,
        distinct_names,
        landscape,
        landscape_picture,
        to_json,
    )
    from rigl_compress.pipeline.train.stage import RunEnvironment
    from rigl_compress.pipeline.workspace import Run

    runs = Run.open(first), Run.open(second)
    if first.resolve() == second.resolve():
        raise click.UsageError(f"{first} and {second} are the same run: pass two different ones")
    config = LandscapeConfig(tuple(curves) or tuple(CURVES), points, steps, rate, samples=samples)
    with _render.running("landscape") as (_, listener):
        run_environment = RunEnvironment(device, data_dir, log=_render.note)
        found = landscape(*runs, config, run_environment, listener)
    if png:
        landscape_picture(found, png, distinct_names(first, second))
    if as_json:
        _render.json_result(to_json(found, config))
        return
    every = list(found.losses.values())
    rows = [(f"{t:.2f}", *(f"{losses[i]:.4f}" for losses in every)) for i, t in enumerate(found.positions)]
    _render.table(f"training loss from {first} (0) to {second} (1)", ("position", *found.losses), rows)
    _render.text(*(f"{name}: barrier of {found.barrier(name):.4f} above its end points" for name in found.losses))
    if png:
        _render.text(f"plot: {png}")
