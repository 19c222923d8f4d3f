"""rigl-compress compare"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._experiments import ExperimentOptions, experiment_options
from rigl_compress.cli._option_groups import grouped


@click.command()
@experiment_options
@options.option("--only", multiple=True, metavar="LABEL", help="Only this row and the rows it starts from.")
@options.output(metavar="DIR", show_default="runs/compare-NAME")
@options.option("--train-only", is_flag=True, help="Train without pruning, exporting and benchmarking.")
@options.markdown
@grouped(chosen=ExperimentOptions)
def command(
    chosen: ExperimentOptions,
    only: tuple[str, ...],
    output: Path | None,
    train_only: bool,
    markdown_file: Path | None,
) -> None:
    """Train several methods under one protocol and write a comparison report. Finished runs are skipped.

    \b
    Example:
      rigl-compress compare --recipe mnist-structured
      rigl-compress compare --recipe mnist-methods --grid method=rigl,set,static --grid sparsity=.8,.9 --seeds 3
    """
    from rigl_compress.cli import _render
    from rigl_compress.core.artifacts import write_text
    from rigl_compress.experiments import report
    from rigl_compress.experiments.results_table import compare_tables, remarks

    experiment = chosen.load().only(only).with_seeds(chosen.seeds)
    folder = output or Path("runs") / f"compare-{experiment.name}"
    result = chosen.run(experiment, folder, train_only=train_only)
    if result is None:
        return
    pictures = report.write_report(result, folder)
    if markdown_file:
        write_text(markdown_file, report.report_markdown(result, pictures))
    if chosen.as_json:
        _render.json_result(result.to_json())
    else:
        for table in compare_tables(result):
            _render.table(table.title, table.columns, table.rows)
            _render.text("")
        _render.text(*remarks(result), "", f"report: {folder / 'comparison.html'}")
    if result.failed:
        raise SystemExit(1)
