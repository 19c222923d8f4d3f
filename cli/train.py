"""rigl-compress train"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@options.recipe
@options.output(metavar="DIR", show_default="runs/RECIPE")
@options.model
@options.data
@options.overrides
@options.seed
@options.option("--resume", metavar="RUN", type=options.PATH, help="Resume this run from its last checkpoint.")
@options.force
@options.data_dir
@options.device
@options.threads(show_default="all cores")
@options.log_to
@options.dry_run
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    output: Path | None,
    model: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    resume: Path | None,
    force: bool,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    log_to: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a recipe.

    \b
    Example:
      rigl-compress train --recipe mnist-rigl -o runs/mnist --set train.epochs=20
      rigl-compress train --resume runs/mnist
    """
    import torch

    from rigl_compress.cli import _render
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.train.recipe_check import check_recipe
    from rigl_compress.pipeline.train.stage import RunEnvironment, train
    from rigl_compress.pipeline.workspace import Run

    if threads:
        torch.set_num_threads(threads)
    changes = options.changes(overrides, model, data, seed)
    if resume and (output or recipe or changes):
        raise click.UsageError("--resume RUN takes the recipe of the run: leave out --output, --recipe and changes")
    loaded = Run.open(resume).recipe() if resume else load_recipe(options.needs_recipe(recipe), changes)
    folder = resume or output or Path("runs") / loaded.name
    loggers = options.loggers(log_to, folder, dry_run=dry_run)
    if dry_run:
        check_recipe(loaded, RunEnvironment(device, data_dir, log=_render.note))
        _render.planned(loaded, folder, as_json=as_json)
        return
    with _render.training(f"{loaded.name}, seed {loaded.seed}") as listener:
        run_environment = RunEnvironment(device, data_dir, listener, _render.note, loggers=loggers)
        train(loaded, folder, run_environment, resume=resume is not None, overwrite=force)
    _render.result(folder, Run.open(folder).result(), as_json=as_json)
