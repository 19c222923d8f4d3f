"""Write docs/results/sparse-inference-low.md from what `sparse_inference.py --low` has measured in several calls.

python benchmarks/low_sparsity_page.py build/low/*.json --markdown docs/results/sparse-inference-low.md
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from inference_networks import CASES

Row = dict[str, Any]
ALLOWED = 1.02  # the time of our session over that of the dense one
ABOUT = """# Sparse inference at low sparsity

Where dense kernels are as fast as sparse ones, `rc.InferenceSession` should leave layers alone. Its time over that of
ONNX Runtime, both in one process, for 50 ms in turn: below 1 is faster. Random masks; the first convolution and
depthwise ones are dense. One thread: CPU time; two: wall-clock time. `ours / dense`: the median over
the rounds of the two times of a round, with two threads the ratio of their best tenths, and an interval of 95 % for the
median (bootstrap over the rounds). Where no layer is sparse both sessions run the same operators: such rows show the
noise of the measurement.

Measured with
"""


def made_by(content: Row) -> str:
    """Return the command of a file, with a word for its network, and without its file."""
    words = content["command"].split()
    words = words[: words.index("--json")] if "--json" in words else words
    kept = [*words[: words.index("--only")], "--only", "NETWORK"] if "--only" in words else words
    return f"python benchmarks/{' '.join(kept)}"


def line(row: Row) -> str:
    """Return a row of the table."""
    interval = f"[{row['slowdown_low']:.3f}, {row['slowdown_high']:.3f}]"
    cells = (row["network"], f"{row['sparsity']:.0%}", str(row["threads"]), f"**{1 / row['ratio']:.3f}** {interval}")
    return f"| {' | '.join((*cells, format(row['dense_ms'], '.3g'), str(row['sparse_layers'])))} |"


def summary(rows: Sequence[Row]) -> str:
    """Return a sentence on the rows that are slower than dense by more than 2 %, with all of their interval."""
    sparse, same = ([row for row in rows if bool(row["sparse_layers"]) == kind] for kind in (True, False))
    slow = [row for row in sparse if row["slowdown_low"] > ALLOWED]
    names = "; ".join(f"{row['network']} at {row['sparsity']:.0%}, threads: {row['threads']}" for row in slow) or "none"
    return (
        f"Slower than dense by more than 2 %, with all of the interval: {names} of the {len(sparse)} rows with sparse "
        f"layers, which take {_range(sparse)} of the dense time. In the other {len(same)} rows both sessions run the "
        f"same operators: {_range(same)}."
    )


def _range(rows: Sequence[Row]) -> str:
    times = [1 / row["ratio"] for row in rows] or [1.0]
    return f"{min(times):.2f} to {max(times):.2f}"


def page(contents: Sequence[Row]) -> str:
    """Return the page."""
    order = {case.label: number for number, case in enumerate(CASES)}
    rows = sorted(
        (row for content in contents for row in content["rows"]),
        key=lambda row: (order[row["network"]], row["sparsity"], row["threads"]),
    )
    facts = contents[0]["environment"]
    commands = sorted({made_by(content) for content in contents})
    where = f"{facts['cpu']}, {facts['cores']} cores, onnxruntime {facts['versions']['onnxruntime']}"
    head = "| network | sparsity | threads | ours / dense | dense ms | sparse layers |\n|---|---|---|---|---|---|"
    made = f"{', '.join(f'`{command}`' for command in commands)} on {facts['date'][:10]}: {where}."
    return f"{ABOUT}{made}\n\n{head}\n" + "\n".join(map(line, rows)) + f"\n\n{summary(rows)}\n"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--markdown", required=True, type=click.Path(path_type=Path), help="The page to write.")
def main(files: tuple[Path, ...], markdown: Path) -> None:
    """Write a page from the rows of FILES."""
    text = page([json.loads(file.read_text(encoding="utf-8")) for file in files])
    markdown.write_text(text, encoding="utf-8")
    click.echo(text.splitlines()[-1])


if __name__ == "__main__":
    main()
