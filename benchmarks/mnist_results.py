"""Print the tables of docs/results/mnist.md from finished sweeps.

    python benchmarks/mnist_results.py NAME=FOLDER [NAME=FOLDER …]

A folder is what `rigl-compress sweep -o` wrote. One row per setting: mean ± sample standard deviation over seeds.
"""

from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import mean

import click

from rigl_compress.experiments.results import ExperimentResult, RowResult
from rigl_compress.experiments.results_table import spread
from rigl_compress.pipeline.markdown import markdown

COLUMNS = (
    "",
    "seeds",
    "error %, final",
    "best",
    "architecture",
    "sparsity",
    "KFLOPs",
    "bytes",
    "training GFLOPs, paper's",
    "exact",
)


def line(name: str, row: RowResult) -> list[str]:
    def column(*path: str) -> list[float]:
        return [float(reduce(getitem, path, result)) for result in row.results]

    return [
        name,
        str(len(row.results)),
        spread(column("final_error"), 2),
        spread(column("best_error"), 2),
        row.architecture,
        f"{mean(column('pruned', 'sparsity')):.3f}",
        spread(column("pruned", "kflops"), 1),
        spread(column("pruned", "bitmask_bytes"), 0),
        f"{mean(column('training_gflops', 'paper-table')):,.1f}",
        f"{mean(column('training_gflops', 'exact-schedule')):,.1f}",
    ]


def lines(name: str, folder: Path) -> list[list[str]]:
    return [line(setting(row.row.label) or name, row) for row in ExperimentResult.load(folder).rows if row.results]


def setting(label: str) -> str:
    return ", ".join(text.partition("=")[2] for text in label.split(", "))


@click.command()
@click.argument("sweeps", nargs=-1, required=True)
def main(sweeps: tuple[str, ...]) -> None:
    """Print one table of all sweeps, best first."""
    pairs = [sweep.partition("=") for sweep in sweeps]
    every = [each for name, _, folder in pairs for each in lines(name, Path(folder))]
    click.echo(markdown(COLUMNS, sorted(every, key=lambda each: float(each[2].split()[0]))))


if __name__ == "__main__":
    main()
