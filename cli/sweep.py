"""rigl-compress sweep"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._experiments import ExperimentOptions, experiment_options
from rigl_compress.cli._option_groups import grouped
from rigl_compress.cli._option_types import OneOf
from rigl_compress.cli._search_options import SearchOptions, search_options
from rigl_compress.core.errors import InputError

if TYPE_CHECKING:
    from rigl_compress.experiments.results import ExperimentResult


@click.command()
@experiment_options
@search_options
@options.output(metavar="DIR", show_default="runs/sweep-RECIPE")
@options.option(
    "--training-convention",
    type=OneOf("training FLOP convention", ("paper-table", "appendix-h", "exact-schedule")),
    default="exact-schedule",
    show_default=True,
    help="Convention for training FLOPs.",
)
@options.markdown
@grouped(chosen=ExperimentOptions, search=SearchOptions)
def command(
    chosen: ExperimentOptions,
    search: SearchOptions,
    output: Path | None,
    training_convention: str,
    markdown_file: Path | None,
) -> None:
    """Train a grid of settings over several seeds, or search a space of settings. Finished runs are skipped.

    \b
    Example:
      rigl-compress sweep --recipe mnist-methods --grid sparsity.method=rigl,set,static --seeds 3 --jobs 2
      rigl-compress sweep --recipe mnist-methods --search optuna --space peak=log:1e-3:1e-1 --set data.holdout=5000
    """
    from rigl_compress.cli import _render
    from rigl_compress.core.artifacts import write_text
    from rigl_compress.experiments.results_table import sweep_table

    result, remarks = _searched(chosen, search, output) if search.search else _swept(chosen, search, output)
    if result is None:
        return
    table = sweep_table(result, training_convention)
    if markdown_file:
        write_text(markdown_file, table.markdown + "\n")
    if chosen.as_json:
        _render.json_result(result.to_json())
    else:
        _render.table(table.title, table.columns, table.rows)
        _render.text(*remarks)
    if result.failed:
        raise SystemExit(1)


def _swept(
    chosen: ExperimentOptions, search: SearchOptions, output: Path | None
) -> "tuple[ExperimentResult | None, Sequence[str]]":
    """Train a grid or a comparison."""
    if search.space:
        raise InputError("--space without --search: add --search optuna, or use --grid KEY=V1,V2")
    experiment = chosen.load().with_seeds(chosen.seeds)
    return chosen.run(experiment, output or Path("runs") / f"sweep-{experiment.name}", train_only=True), ()


def _searched(
    chosen: ExperimentOptions, search: SearchOptions, output: Path | None
) -> "tuple[ExperimentResult | None, Sequence[str]]":
    """Search a space; with the lines below the table."""
    from rigl_compress.experiments.run_search import search_remarks

    plan = search.plan(chosen)
    result = search.run(plan, output or Path("runs") / f"search-{plan.name}", chosen)
    return result, () if result is None else search_remarks(plan, result)
