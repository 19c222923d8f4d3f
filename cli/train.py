"""rigl-compress train"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_groups import (
    RecipeOptions,
    TrainingOptions,
    grouped,
    recipe_options,
    training_options,
)


@click.command()
@recipe_options
@options.option("--resume", metavar="RUN", type=options.PATH, help="Resume this run from its last checkpoint.")
@options.force
@options.processes
@training_options(threads="all cores")
@grouped(chosen=RecipeOptions, training=TrainingOptions)
def command(
    chosen: RecipeOptions,
    training: TrainingOptions,
    resume: Path | None,
    force: bool,
    processes: int | None,
) -> None:
    """Train a recipe.

    \b
    Example:
      rigl-compress train --recipe mnist-rigl -o runs/mnist --set train.epochs=20
      rigl-compress train --resume runs/mnist
      rigl-compress train --recipe mnist-rigl --processes 2
    """
    from rigl_compress.cli import _render
    from rigl_compress.cli._processes import joined
    from rigl_compress.core.memory_reuse import reuse_memory
    from rigl_compress.pipeline.train.recipe_check import check_recipe
    from rigl_compress.pipeline.train.stage import RunEnvironment, train
    from rigl_compress.pipeline.workspace import Run

    if resume and (chosen.output or chosen.recipe or chosen.changes):
        raise click.UsageError("--resume RUN takes the recipe of the run: leave out --output, --recipe and changes")
    with joined(processes, training.device, quick=training.dry_run) as (world, device):
        training.set_threads()
        loaded = Run.open(resume).recipe() if resume else chosen.load()
        folder = resume or chosen.output or Path("runs") / loaded.name
        loggers = training.loggers(folder) if world.first else ()
        if training.dry_run:
            check_recipe(loaded, RunEnvironment(device, training.data_dir, log=_render.note))
            _render.planned(loaded, folder, as_json=training.as_json)
            return
        reuse_memory()
        if not world.first:
            train(loaded, folder, RunEnvironment(device, training.data_dir), resume=resume is not None)
            return
        with _render.training(f"{loaded.name}, seed {loaded.seed}") as listener:
            run_environment = RunEnvironment(device, training.data_dir, listener, _render.note, loggers=loggers)
            train(loaded, folder, run_environment, resume=resume is not None, overwrite=force)
    _render.result(folder, Run.open(folder).result(), as_json=training.as_json)
