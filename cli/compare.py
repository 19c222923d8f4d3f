"""rigl-compress compare"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@options.recipe
@click.option("--grid", multiple=True, metavar="KEY=V1,V2", help="Of a plain recipe: values to combine into rows.")
@click.option(
    "--seeds", type=click.IntRange(min=1), help="Seeds 0 … N-1 of each row.  [default: the comparison's, or 1]"
)
@click.option("--only", multiple=True, metavar="LABEL", help="Only this row, and what it starts from; can be repeated.")
@options.overrides
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the runs.  [default: runs/compare-NAME]")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time, one thread each.  [default: all cores]")
@click.option("--train-only", is_flag=True, help="Train; do not prune, export and bench.")
@click.option(
    "--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write the report to this file."
)
@options.data_dir
@options.device
@options.dry_run
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    grid: tuple[str, ...],
    seeds: int | None,
    only: tuple[str, ...],
    overrides: tuple[str, ...],
    out: Path | None,
    jobs: int | None,
    train_only: bool,
    markdown_file: Path | None,
    data_dir: Path | None,
    device: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train several methods under one protocol, and write the table of the paper. Finished runs are not repeated.

    \b
    Example:
      rigl-compress compare --recipe mnist-structured
      rigl-compress compare --recipe mnist-methods --grid method=rigl,set,static --grid sparsity=.8,.9 --seeds 3
    """
    from rigl_compress.cli import _render
    from rigl_compress.models.artifacts import write_text
    from rigl_compress.pipeline.compare import page, stage
    from rigl_compress.pipeline.compare.cells import cells_of
    from rigl_compress.pipeline.compare.comparison import load_comparison
    from rigl_compress.pipeline.compare.grid import grid_comparison
    from rigl_compress.pipeline.compare.table import tables
    from rigl_compress.pipeline.compare.work import Task, cores

    source = options.needs_recipe(recipe)
    comparison = load_comparison(source)
    if comparison is None:
        comparison = grid_comparison(source, grid)
    elif grid:
        raise click.UsageError(f"--grid is for plain recipes, {source} is a comparison: leave it out")
    comparison = comparison.only(only).with_seeds(seeds)
    folder = out or Path("runs") / f"compare-{comparison.name}"
    cells = cells_of(comparison, folder, overrides)
    if dry_run:
        _render.runs({cell.path: cell.state for cell in cells}, as_json=as_json)
        return
    with _render.watching(len(cells)) as told:
        found = stage.compare(comparison, cells, Task(device, data_dir, train_only), jobs or cores(), told)
    pictures = stage.write_found(found, folder)
    if markdown_file:
        write_text(markdown_file, page.comparison_markdown(found, pictures))
    if as_json:
        _render.json_result(found.to_json())
    else:
        for table in tables(found.rows, found.latencies, comparison.name):
            _render.table(table.title, table.columns, table.rows)
            _render.text("")
        _render.text(*page.remarks(found), "", f"report: {folder / 'comparison.html'}")
    if found.failed:
        raise SystemExit(1)
