"""rigl-compress sweep"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._experiments import experiment_options
from rigl_compress.cli._option_types import OneOf


@click.command()
@experiment_options
@options.output(metavar="DIR", show_default="runs/sweep-RECIPE")
@options.option(
    "--training-convention",
    type=OneOf("training FLOP convention", ("paper-table", "appendix-h", "exact-schedule")),
    default="exact-schedule",
    show_default=True,
    help="Convention for training FLOPs.",
)
@options.markdown
def command(
    recipe: str | None,
    model: str | None,
    data: str | None,
    grid: tuple[str, ...],
    seeds: int | None,
    overrides: tuple[str, ...],
    jobs: int | None,
    data_dir: Path | None,
    device: str,
    dry_run: bool,
    as_json: bool,
    output: Path | None,
    training_convention: str,
    markdown_file: Path | None,
) -> None:
    """Train a grid of settings over several seeds. Finished runs are skipped.

    \b
    Example:
      rigl-compress sweep --recipe mnist-methods --grid sparsity.method=rigl,set,static --seeds 3 --jobs 2
    """
    from rigl_compress.cli import _experiments, _render
    from rigl_compress.core.artifacts import write_text
    from rigl_compress.experiments.grid import load_experiment
    from rigl_compress.experiments.results_table import sweep_table
    from rigl_compress.experiments.trial_task import Task

    changes = options.changes(overrides, model, data)
    experiment = load_experiment(options.needs_recipe(recipe), grid, changes).with_seeds(seeds)
    folder = output or Path("runs") / f"sweep-{experiment.name}"
    plan = _experiments.Plan(experiment, folder, Task(device, data_dir, train_only=True), jobs)
    result = _experiments.run(plan, dry_run=dry_run, as_json=as_json)
    if result is None:
        return
    table = sweep_table(result, training_convention)
    if markdown_file:
        write_text(markdown_file, table.markdown + "\n")
    if as_json:
        _render.json_result(result.to_json())
    else:
        _render.table(table.title, table.columns, table.rows)
    if result.failed:
        raise SystemExit(1)
