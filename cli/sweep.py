"""rigl-compress sweep"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@options.recipe
@click.option("--grid", multiple=True, metavar="KEY=V1,V2", help="Values to combine, e.g. sparsity.method=rigl,set.")
@click.option(
    "--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="Seeds 0 … N-1 of each setting."
)
@options.model
@options.data
@options.overrides
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs.  [default: runs/sweep-RECIPE]")
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Runs at a time, one thread each."
)
@click.option("--convention", default="exact-schedule", show_default=True, help="How training FLOPs are counted.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write the table to this file.")
@options.data_dir
@options.device
@options.dry_run
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    grid: tuple[str, ...],
    seeds: int,
    model: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    out: Path | None,
    jobs: int,
    convention: str,
    markdown_file: Path | None,
    data_dir: Path | None,
    device: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a grid of settings over several seeds. Finished runs are not repeated.

    \b
    Example:
      rigl-compress sweep --recipe mnist-methods --grid sparsity.method=rigl,set,static --seeds 3 --jobs 2
    """
    from rigl_compress.cli import _render
    from rigl_compress.models.artifacts import write_text
    from rigl_compress.pipeline import sweep
    from rigl_compress.pipeline.markdown import markdown
    from rigl_compress.pipeline.train.costs import TRAINING_CONVENTIONS
    from rigl_compress.pipeline.train.stage import Circumstances

    source, changes = options.needs_recipe(recipe), options.changes(overrides, model, data)
    folder = out or Path("runs") / f"sweep-{Path(source).stem}"
    every = sweep.cells(grid, range(seeds))
    TRAINING_CONVENTIONS[convention]  # an unknown name is an error now, not after hours of training
    sweep.plan(source, changes, every, folder)  # what is wrong is said before anything else
    if dry_run:
        _render.runs({folder / cell.folder: sweep.state(folder / cell.folder) for cell in every}, as_json=as_json)
        return
    _render.note(f"{len(every)} runs in {folder}, {jobs} at a time; each is told when it ends")
    outcomes = sweep.sweep(source, changes, every, folder, jobs, Circumstances(device, data_dir, say=_render.note))
    lines = list(sweep.rows(outcomes, convention))
    if markdown_file:
        write_text(markdown_file, markdown(sweep.columns(outcomes), lines) + "\n")
    if as_json:
        _render.json_result(sweep.sweep_json(source, changes, outcomes))
    else:
        _render.table(f"{source}, training GFLOPs by {convention}", sweep.columns(outcomes), lines)
    if any(outcome.failure for outcome in outcomes):
        raise SystemExit(1)
