"""Whether `rigl-compress sparsify --budget speedup=X` is met by the measured time, with times by layer.

PHOTOGRAPHS and TEXTS as of sparsify_curves.py. Weights are removed by magnitude: times depend on where zeros are, not
on how they were chosen. The pruned file in our session and the original in ONNX Runtime run in turns on one sample, one
thread; medians of CPU time. Predictions by layer are those of the cost model at the densities that were chosen.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import click
import numpy as np
import onnx
import torch
from sparsify_curves import Network, networks

import rigl_compress as rc
from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.exporters.restore import restore
from rigl_compress.onnx_pruning.layer_costs import time_costs
from rigl_compress.onnx_pruning.prunable_layers import find_prunable
from rigl_compress.pipeline.bench.layer_times import layer_times

Row = dict[str, Any]
ROUNDS = 60
SAMPLES = 10


def spent(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median CPU seconds of each, in turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 5):
        for name, run in runs.items():
            began = process_time()
            run()
            if turn >= 5:
                found[name].append(process_time() - began)
    return {name: median(each) for name, each in found.items()}


def met(network: Network, speedup: float, work: Path) -> Row:
    """Prune to a budget, and measure."""
    path, data = work / f"{network.label}-{speedup:g}.onnx", work / f"{network.label}.npz"
    first = network.calibration[0]
    batches = [each for each in network.calibration if shapes(each) == shapes(first)][:SAMPLES]
    np.savez(data, **{name: np.concatenate([each[name] for each in batches])[:SAMPLES] for name in first})  # type: ignore[arg-type]
    row: Row = {"network": network.name, "wished": speedup}
    given = {"budget": f"speedup={speedup}", "calibration": data, "method": "magnitude", "overwrite": True}
    try:
        report = rc.sparsify_onnx(network.file, path, **given)
    except rc.InputError as error:
        return row | {"refused": str(error)}
    sample = {name: each[:1] for name, each in first.items()}
    seconds = timed(network.file, path, sample)
    return row | {
        "measured": seconds["original"] / seconds["pruned"], "own": report.speedup, "sparsity": report.sparsity,
        **seconds, "tried": report.facts["budget"]["tried"], "layers": by_layer(path, sample),
    }  # fmt: skip


def shapes(batch: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one sample."""
    return {name: each.shape[1:] for name, each in batch.items()}


def timed(original: Path, pruned: Path, sample: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the seconds of both files."""
    before = open_session(original, session_options(1))
    after = rc.InferenceSession(str(pruned), session_options(1))
    return spent({"original": lambda: before.run(None, sample), "pruned": lambda: after.run(None, sample)})


def by_layer(pruned: Path, sample: dict[str, np.ndarray]) -> list[Row]:
    """Return the predicted and the measured time of each layer of the pruned file."""
    model = restore(onnx.load(pruned))
    layers = [each for each in find_prunable(model).layers if not each.depthwise]
    costs = time_costs(model, layers, sample)
    stored = {each.name: each for each in model.graph.initializer}
    density = {
        each.name: float(np.count_nonzero(onnx.numpy_helper.to_array(stored[each.name]))) / each.size for each in layers
    }
    measured = {each.name: each for each in layer_times(pruned, sample, 1)}
    return [
        {
            "name": name,
            "shape": measured[name].shape,
            "density": density[name],
            "kernel": measured[name].kernel,
            "predicted": costs[name](density[name]) * 1e-9,
            "measured": measured[name].seconds,
        }
        for name in density
        if name in measured
    ]


@click.command(help=__doc__)
@click.argument("photos", metavar="PHOTOGRAPHS", type=click.Path(exists=True, path_type=Path))
@click.argument("texts", type=click.Path(exists=True, path_type=Path))
@click.option("--only", multiple=True, default=("EfficientNet", "MiniLM", "PP-OCR rec"), show_default=True)
@click.option("--speedup", multiple=True, type=float, default=(1.5, 2.0, 3.0), show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("runs/sparsify-budgets"), show_default=True)
def main(photos: Path, texts: Path, only: Sequence[str], speedup: Sequence[float], work: Path) -> None:
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    for name, make in networks(photos, texts, work).items():
        if not any(each in name for each in only) or (network := make()) is None:
            continue
        for each in speedup:
            row = met(network, each, work)
            with (work / "budgets.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            click.echo(json.dumps({key: value for key, value in row.items() if key != "layers"}))


if __name__ == "__main__":
    main()
