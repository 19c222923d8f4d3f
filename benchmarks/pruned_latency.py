"""How long networks take before and after pruning, in ONNX Runtime and in our session, in turns.

    python benchmarks/pruned_latency.py [--seconds 1.0] [NAME …]

The networks have random masks and lose units on purpose: pixels, channels of the input, channels within. A ratio is the
median over the rounds; every round runs all sessions of a row once, in random order, so that what slows the machine
down slows all of them. Sessions have one thread, and what is measured is the time that it computes: a machine that does
other work does not count. Selections are what the export chose: "zeros" reads everything, as if nothing was cut.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, thread_time
from typing import Any

import click
import onnx
import onnxruntime as ort
import torch
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.core.provenance import environment
from rigl_compress.exporters.onnx_export import ExportedModel
from rigl_compress.exporters.restore import restore
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.pipeline.markdown import markdown

BATCHES = (1, 64, 256)
FEWEST = 11


@dataclass(frozen=True)
class Case:
    """A network, its input, the share of weights that live, and what dies: inputs of the first layer, and units."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    density: float
    dead_inputs: int = 0
    dead_units: float = 0.0


def lenet() -> nn.Module:
    layers = (nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))
    return nn.Sequential(nn.Flatten(), *layers)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(4096, 1024), nn.ReLU(), nn.Linear(1024, 10))


def convolutions(channels: int) -> nn.Module:
    parts = []
    for before, after in ((channels, 32), (32, 64), (64, 64)):
        parts += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


CASES = {
    "LeNet-300-100, 2 pixels": Case(lenet, (1, 28, 28), 0.05, 2),
    "LeNet-300-100, 50 pixels": Case(lenet, (1, 28, 28), 0.05, 50),
    "LeNet-300-100, 370 pixels": Case(lenet, (1, 28, 28), 0.05, 370),
    "LeNet-300-100, 370 pixels, half of the units": Case(lenet, (1, 28, 28), 0.05, 370, 0.5),
    "LeNet-300-100, 740 pixels": Case(lenet, (1, 28, 28), 0.05, 740),
    "4096-1024-10, half of the inputs": Case(wide, (4096,), 0.05, 2048),
    "3 convolutions, 1 of 3 channels": Case(lambda: convolutions(3), (3, 16, 16), 0.1, 1),
    "3 convolutions, 5 of 16 channels": Case(lambda: convolutions(16), (16, 16, 16), 0.1, 5),
    "3 convolutions, 3 % of the units": Case(lambda: convolutions(3), (3, 16, 16), 0.1, 0, 0.03),
    "3 convolutions, 20 % of the units": Case(lambda: convolutions(3), (3, 16, 16), 0.1, 0, 0.2),
}


def masks_of(model: nn.Module, case: Case) -> dict[str, Tensor]:
    """Set random masks: the first layer does not hear some inputs, all but the last lose some units."""
    weights = sparse_parameters(model)
    masks = {name: torch.rand_like(weight) < case.density for name, weight in weights.items()}
    for mask in list(masks.values())[:-1]:
        mask[torch.randperm(len(mask))[: round(case.dead_units * len(mask))]] = False
    first = next(iter(masks.values()))
    first[:, torch.randperm(first.shape[1])[: case.dead_inputs]] = False
    return masks


def exported(case: Case, folder: Path) -> tuple[str, dict[str, ExportedModel]]:
    """Export a network as it was trained and pruned; also give what is left of it."""
    torch.manual_seed(0)
    model, example = case.build().eval(), torch.rand(1, *case.shape)
    topology = rc.Topology.from_masks(masks_of(model, case))
    topology.apply_to(model)
    pruned = rc.prune_dead_neurons(model, topology, example)
    topology.apply_to(model)
    networks = {"trained": model, "pruned": pruned.model}
    files = {name: rc.export_onnx(each, example, folder / f"{name}.onnx") for name, each in networks.items()}
    return pruned.report.architecture, files


def sessions(files: Mapping[str, ExportedModel]) -> dict[tuple[str, str], Any]:
    found: dict[tuple[str, str], Any] = {}
    for name, file in files.items():
        for runtime, open_it in (("onnxruntime", ort.InferenceSession), ("rigl", rc.InferenceSession)):
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            found[runtime, name] = open_it(str(file.path), options)
    return found


def in_turns(opened: Mapping[tuple[str, str], Any], x: Any, seconds: float) -> dict[tuple[str, str], list[float]]:
    times: dict[tuple[str, str], list[float]] = {key: [] for key in opened}
    order, random = list(opened), Random(0)
    for session in opened.values():
        session.run(None, {"input": x})
    began = perf_counter()
    while perf_counter() - began < seconds or len(times[order[0]]) < FEWEST:
        random.shuffle(order)
        for key in order:
            start = thread_time()
            opened[key].run(None, {"input": x})
            times[key].append(thread_time() - start)
    return times


def cells(times: Mapping[tuple[str, str], list[float]], runtime: str) -> list[str]:
    trained, pruned = times[runtime, "trained"], times[runtime, "pruned"]
    ratio = median(after / before for after, before in zip(pruned, trained, strict=True))
    return [f"{median(trained) * 1e6:,.0f}", f"{median(pruned) * 1e6:,.0f}", f"{ratio:.2f}x"]


def selection_of(file: ExportedModel) -> str:
    chosen = {node.op_type for node in restore(onnx.load(file.path)).graph.node} & {"Gather", "Slice"}
    return ", ".join(sorted(chosen)) or "zeros"


def rows_of(name: str, seconds: float) -> list[list[str]]:
    case = CASES[name]
    with TemporaryDirectory() as folder:
        architecture, files = exported(case, Path(folder))
        opened = sessions(files)
        rows = []
        for batch in BATCHES:
            times = in_turns(opened, torch.rand(batch, *case.shape).numpy(), seconds)
            facts = [name, architecture, selection_of(files["pruned"]), str(batch)]
            rows.append([*facts, *cells(times, "onnxruntime"), *cells(times, "rigl")])
        return rows


@click.command()
@click.option("--seconds", default=1.0, show_default=True, help="How long each row is measured.")
@click.argument("names", nargs=-1)
def main(seconds: float, names: tuple[str, ...]) -> None:
    """Print a table, and what it was made on."""
    torch.set_num_threads(1)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        raise click.UsageError(f"no case {unknown[0]!r}: choose of {', '.join(CASES)}")
    columns = ("what was lost", "units", "selection", "batch", "ONNX Runtime: trained, µs", "pruned", "ratio")
    rows = [row for name in names or CASES for row in rows_of(name, seconds)]
    click.echo(markdown((*columns, "our session: trained, µs", "pruned", "ratio"), rows))
    click.echo(f"\n{json.dumps(environment())}")


if __name__ == "__main__":
    main()
