"""rigl-compress sweep"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._experiments import ExperimentOptions, experiment_options
from rigl_compress.cli._option_groups import grouped
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
@grouped(chosen=ExperimentOptions)
def command(
    chosen: ExperimentOptions,
    output: Path | None,
    training_convention: str,
    markdown_file: Path | None,
) -> None:
    """Train a grid of settings over several seeds. Finished runs are skipped.

    \b
    Example:
      rigl-compress sweep --recipe mnist-methods --grid sparsity.method=rigl,set,static --seeds 3 --jobs 2
    """
    from rigl_compress.cli import _render
    from rigl_compress.core.artifacts import write_text
    from rigl_compress.experiments.results_table import sweep_table

    experiment = chosen.load().with_seeds(chosen.seeds)
    folder = output or Path("runs") / f"sweep-{experiment.name}"
    result = chosen.run(experiment, folder, train_only=True)
    if result is None:
        return
    table = sweep_table(result, training_convention)
    if markdown_file:
        write_text(markdown_file, table.markdown + "\n")
    if chosen.as_json:
        _render.json_result(result.to_json())
    else:
        _render.table(table.title, table.columns, table.rows)
    if result.failed:
        raise SystemExit(1)
