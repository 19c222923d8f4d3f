"""rigl-compress train"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@options.recipe
@click.option("--run", "path", type=click.Path(path_type=Path), help="Run folder.  [default: runs/RECIPE]")
@options.model
@options.data
@options.overrides
@click.option("--seed", type=int, help="Seed of everything random.  [default: the recipe's]")
@click.option("--resume", is_flag=True, help="Go on with the run in --run, from its last checkpoint.")
@click.option("--force", is_flag=True, help="Replace an earlier run in the same folder.")
@options.data_dir
@options.device
@options.threads
@options.dry_run
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    path: Path | None,
    model: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    seed: int | None,
    resume: bool,
    force: bool,
    data_dir: Path | None,
    device: str,
    threads: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a recipe in a run folder.

    \b
    Example:
      rigl-compress train --recipe mnist-rigl --run runs/mnist --set train.epochs=20
    """
    import torch

    from rigl_compress.cli import _render
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.train.check import check_recipe
    from rigl_compress.pipeline.train.stage import Circumstances, train
    from rigl_compress.pipeline.workspace import Run

    if threads:
        torch.set_num_threads(threads)
    changes = options.changes(overrides, model, data, seed)
    if resume and (path is None or recipe or changes):
        raise click.UsageError(
            "--resume takes the folder of the run, --run DIR, and neither a recipe nor changes to it"
        )
    loaded = Run.open(path).recipe() if resume and path else load_recipe(options.needs_recipe(recipe), changes)
    folder = path or Path("runs") / loaded.name
    if dry_run:
        check_recipe(loaded, Circumstances(device, data_dir, say=_render.note))
        _render.planned(loaded, folder, as_json=as_json)
        return
    with _render.training(f"{loaded.name}, seed {loaded.seed}") as listener:
        circumstances = Circumstances(device, data_dir, listener, _render.note)
        train(loaded, folder, circumstances, resume=resume, overwrite=force)
    _render.result(folder, Run.open(folder).result(), as_json=as_json)
