"""Draw the speed-up of sparse over dense inference, from the figures of a benchmark.

python benchmarks/sparse_inference.py --picture --threads 1 --json docs/results/speedup.json
python benchmarks/draw_speedup.py docs/results/speedup.json docs/results/speedup.svg
"""

import json
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

NAMES = {"resnet-50": "ResNet-50", "mobilenet-v1": "MobileNet-v1", "bert-base": "BERT-base, 128 tokens"}
COLOURS = ("#4f46e5", "#0d9488", "#d97706")


def lines_of(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each network in the picture, ordered by sparsity."""
    return {
        name: sorted((row for row in rows if row["network"].startswith(key)), key=lambda row: float(row["sparsity"]))
        for key, name in NAMES.items()
    }


def draw(axes: Axes, lines: dict[str, list[dict[str, Any]]]) -> None:
    """Draw a line for each network, with its quartiles as a band and its last value as a label."""
    axes.axhline(1, color="#64748b", linewidth=1, linestyle="--")
    axes.text(100.5, 0.72, "dense ONNX Runtime", color="#64748b", fontsize=9, ha="right")
    for (name, rows), colour in zip(lines.items(), COLOURS, strict=True):
        if not rows:
            click.echo(f"not drawn: no rows of {name}", err=True)
            continue
        xs = [100 * row["sparsity"] for row in rows]
        axes.plot(xs, [row["ratio"] for row in rows], color=colour, marker="o", markersize=4, label=name)
        axes.fill_between(xs, [row["low"] for row in rows], [row["high"] for row in rows], color=colour, alpha=0.15)
        axes.annotate(f"{rows[-1]['ratio']:.1f}×", (xs[-1], rows[-1]["ratio"]), (6, -3), textcoords="offset points")
    axes.set(xlabel="sparsity (%)", ylabel="speed-up (×)", ylim=(0, None), xlim=(48, 101))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0, 0.98))


def caption(content: dict[str, Any]) -> str:
    """Return what was measured, where."""
    facts, threads = content["environment"], {row["threads"] for row in content["rows"]}
    where = f"{facts['cpu']}, {'/'.join(map(str, sorted(threads)))} thread, batch 1, float32"
    return f"rc.InferenceSession over dense ONNX Runtime {facts['versions']['onnxruntime']}: {where}"


@click.command()
@click.argument("figures", type=click.Path(exists=True, path_type=Path))
@click.argument("picture", type=click.Path(path_type=Path))
def main(figures: Path, picture: Path) -> None:
    """Draw FIGURES, the JSON of `sparse_inference.py --picture`, into PICTURE."""
    content = json.loads(figures.read_text(encoding="utf-8"))
    mpl.rcParams.update({"svg.hashsalt": "rigl-compress", "svg.fonttype": "none", "font.family": "sans-serif"})
    found, axes = plt.subplots(figsize=(8, 4.2))
    draw(axes, lines_of(content["rows"]))
    axes.set_title(caption(content), fontsize=10, loc="left")
    found.tight_layout()
    found.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
