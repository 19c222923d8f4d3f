"""rigl-compress landscape"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--curve", "curves", multiple=True, help="linear, quadratic, cubic, quadratic-dense.  [default: all]")
@click.option("--points", default=21, show_default=True, help="Places of a curve that are looked at.")
@click.option("--steps", default=1000, show_default=True, help="Steps that train a curve.")
@click.option("--rate", default=1e-3, show_default=True, help="Learning rate of a curve.")
@click.option("--samples", default=10_000, show_default=True, help="Training samples that the loss is taken of.")
@click.option("--png", type=click.Path(path_type=Path), help="Also draw the curves into this PNG file.")
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
    """Look at the training loss between two trained networks, on the line and on curves trained to be low.

    \b
    Example:
      rigl-compress landscape runs/pruning runs/static --png landscape.png
    """
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.landscape import (
        CURVES,
        LandscapeConfig,
        landscape,
        landscape_picture,
        names_apart,
        to_json,
    )
    from rigl_compress.pipeline.train.stage import Circumstances
    from rigl_compress.pipeline.workspace import Run

    runs = Run.open(first), Run.open(second)
    if first.resolve() == second.resolve():
        raise click.UsageError(f"{first} and {second} are the same run: there is nothing between them")
    config = LandscapeConfig(tuple(curves) or tuple(CURVES), points, steps, rate, samples=samples)
    with _render.running("landscape") as (_, watch):
        here = Circumstances(device, data_dir, say=_render.note)
        found = landscape(*runs, config, here, watch)
    if png:
        landscape_picture(found, png, names_apart(first, second))
    if as_json:
        _render.json_result(to_json(found, config))
        return
    rows = [(f"{t:.2f}", *(f"{losses[i]:.4f}" for losses in found.losses.values())) for i, t in enumerate(found.places)]
    _render.table(f"training loss from {first} (0) to {second} (1)", ("place", *found.losses), rows)
    _render.text(*(f"{name}: rises {found.barrier(name):.4f} above its ends" for name in found.losses))
    if png:
        _render.text(f"drawn to {png}")
