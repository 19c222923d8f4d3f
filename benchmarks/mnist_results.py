"""Print the tables of docs/results/mnist.md from finished sweeps.

    python benchmarks/mnist_results.py NAME=FOLDER [NAME=FOLDER …]

A folder is what `rigl-compress sweep --out` wrote. One row per setting: mean ± sample standard deviation over seeds.
"""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import click

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


def spread(values: list[float], digits: int) -> str:
    middle = f"{mean(values):,.{digits}f}"
    return f"{middle} ± {stdev(values):,.{digits}f}" if len(values) > 1 else middle


def architecture(results: list[dict[str, Any]]) -> str:
    """Give the mean width of each layer, inputs first."""
    widths = [[int(width) for width in result["alive"]["architecture"].split("-")] for result in results]
    return "-".join(f"{mean(column):.0f}" for column in zip(*widths, strict=True))


def row(name: str, results: list[dict[str, Any]]) -> list[str]:
    def column(*path: str) -> list[float]:
        values = []
        for result in results:
            value: Any = result
            for key in path:
                value = value[key]
            values.append(float(value))
        return values

    return [
        name,
        str(len(results)),
        spread(column("final_error"), 2),
        spread(column("best_error"), 2),
        architecture(results),
        f"{mean(column('alive', 'sparsity')):.3f}",
        spread(column("alive", "kflops"), 1),
        spread(column("alive", "bitmask_bytes"), 0),
        f"{mean(column('training_gflops', 'paper-table')):,.1f}",
        f"{mean(column('training_gflops', 'exact-schedule')):,.1f}",
    ]


def rows(name: str, folder: Path) -> list[list[str]]:
    runs = [run for run in json.loads((folder / "sweep.json").read_text())["runs"] if run["result"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        setting = ", ".join(text.partition("=")[2] for text in run["settings"])
        groups.setdefault(setting or name, []).append(run["result"])
    return [row(setting, results) for setting, results in groups.items()]


@click.command()
@click.argument("sweeps", nargs=-1, required=True)
def main(sweeps: tuple[str, ...]) -> None:
    """Print one table of all sweeps, best first."""
    lines = [line for sweep in sweeps for line in rows(sweep.partition("=")[0], Path(sweep.partition("=")[2]))]
    click.echo(markdown(COLUMNS, sorted(lines, key=lambda line: float(line[2].split()[0]))))


if __name__ == "__main__":
    main()
