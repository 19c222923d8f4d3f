"""What each encoding weighs on disk, and what it costs to open and to run in stock ONNX Runtime.

    python benchmarks/file_size.py [--rounds 15] [--plus RUN] [--json FILE] [--markdown FILE]

Everything is a ratio to the dense file of the same model, measured in the same run: rounds take the encodings in random
order, opening is timed in fresh processes with default options, and printed are medians and quartiles of the rounds.
Times are of computing, which other work on the machine disturbs less than the clock on the wall. Weights are random:
how many zeros there are is all that matters here. Peak memory is read from /proc, so this runs on Linux.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from time import process_time
from typing import TypeVar

import click
import numpy as np
import onnxruntime as ort
import torch
from resnet50 import resnet50
from torch import Tensor, nn

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.exporters.onnx_export import Layout, export_onnx, reencode
from rigl_compress.exporters.ort_sessions import open_session, session_options
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.pipeline.export.stage import ExportConfig, export
from rigl_compress.pipeline.markdown import markdown

T = TypeVar("T", "Row", "Ratio")
ENCODINGS = ("dense", "sparse", "bitmask", "gap8", "compact")
NETS = {  # shape of an input, seconds of calls in a round
    "lenet 90 %": ((1, 1, 28, 28), 0.2),
    "resnet-50 90 %": ((1, 3, 64, 64), 1.0),  # a small picture keeps it short; the weights are what is opened
}
ABOUT = """# File size, load time and latency of the encodings

Measured with `{command}` on {date}, on {cores} cores of an {cpu}, ONNX Runtime {ort}, onnx {onnx}, torch {torch}.
Weights are random, seed 0, except those of the RigL+ network, which is what `rigl-compress train --recipe mnist-rigl`,
`train --recipe mnist-rigl-plus` and `prune` leave (seed 0, [MNIST](mnist.md)).

## Bytes on disk, all included

{sizes}

## In parts of the dense file

Median of {rounds} rounds and the quartiles. *run*: computing time of a call, one thread, the shortest of many calls in
each round, with new sessions in each. *open*: computing time of `InferenceSession(file)` in a fresh process with
default options. *memory*: the most that this process ever had, imports included.

{ratios}
"""


@dataclass(frozen=True)
class Row:
    """The size of a file."""

    model: str
    encoding: str
    values: str
    bytes: int

    def cells(self) -> list[str]:
        """Return the row of the table."""
        return [self.model, self.encoding, self.values, f"{self.bytes:,}"]


@dataclass(frozen=True)
class Ratio:
    """What an encoding costs in parts of dense, over the rounds."""

    model: str
    encoding: str
    what: str
    median: float
    quartiles: tuple[float, float]

    def cells(self) -> list[str]:
        """Return the row of the table."""
        low, high = self.quartiles
        return [self.model, self.encoding, self.what, f"{self.median:.3f}", f"{low:.3f} … {high:.3f}"]


def ratio(model: str, encoding: str, what: str, rounds: list[float]) -> Ratio:
    low, middle, high = quantiles(rounds, n=4, method="inclusive")
    return Ratio(model, encoding, what, middle, (low, high))


# Opens a file in a process of its own: seconds of computing, and the most memory the process ever had. (getrusage
# would give that of the process that started it, if that was more.)
OPEN = """
import re, sys, time
import onnxruntime as ort
options = ort.SessionOptions()
options.log_severity_level = 3
began = time.process_time()
ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(time.process_time() - began, re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
"""


def dense_file(model: nn.Module, example: Tensor, sparsity: float, path: Path) -> Path:
    """Write a network with so many zeros in each of its layers."""
    for parameter in sparse_parameters(model).values():
        zeros = torch.randperm(parameter.numel())[: int(sparsity * parameter.numel())]
        parameter.data.view(-1)[zeros] = 0
    return export_onnx(model, example, path, encoding="dense").path


def running(files: dict[str, Path], net: str, rounds: int) -> Iterator[Ratio]:
    """Time runs in rounds that alternate between the files."""
    shape, seconds = NETS[net]
    x = {"input": np.random.default_rng(0).random(shape, dtype=np.float32)}
    calls = max(3, int(seconds / _seconds(open_session(files["dense"], session_options(1)), x, 5)))
    times: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(rounds):
        # Opened anew each time: where weights come to lie in memory is a matter of luck, and some places are faster.
        sessions = {name: open_session(files[name], session_options(1)) for name in shuffled(files)}
        for name in shuffled(files):
            times[name].append(_seconds(sessions[name], x, calls))
    yield from (ratio(net, name, "run", compared(times, name)) for name in files if name != "dense")


def compared(figures: dict[str, list[float]], name: str) -> list[float]:
    return [one / dense for one, dense in zip(figures[name], figures["dense"], strict=True)]


def _seconds(opened: ort.InferenceSession, x: dict[str, np.ndarray], calls: int) -> float:
    """Return the shortest of the calls' times: other work on the machine only ever adds to it."""
    best = float("inf")
    for _ in range(calls):
        began = process_time()
        opened.run(None, x)
        best = min(best, process_time() - began)
    return best


def shuffled(files: dict[str, Path]) -> list[str]:
    return random.sample([*files], len(files))


def opening(files: dict[str, Path], net: str, rounds: int) -> Iterator[Ratio]:
    """Open each file in fresh processes: its time and the peak of its memory."""
    seconds: dict[str, list[float]] = {name: [] for name in files}
    memory: dict[str, list[float]] = {name: [] for name in files}
    for _ in range(rounds):
        for name in shuffled(files):
            done = subprocess.run([sys.executable, "-c", OPEN, files[name]], capture_output=True, text=True, check=True)
            for figures, text in zip((seconds, memory), done.stdout.split(), strict=True):
                figures[name].append(float(text))
    for what, figures in (("open", seconds), ("memory", memory)):
        yield from (ratio(net, name, what, compared(figures, name)) for name in files if name != "dense")


def sizes(name: str, source: Path, folder: Path, values: tuple[str, ...] = ("fp32", "fp16", "int8")) -> list[Row]:
    """Write the model in every encoding and value type."""
    rows = []
    for kind in values:
        for encoding in ENCODINGS:
            path = folder / f"{name} {encoding} {kind}.onnx"
            rows.append(printed(Row(name, encoding, kind, reencode(source, path, Layout(encoding, kind)).bytes)))
    return rows


def printed(row: T) -> T:
    """Print a row as soon as it is there."""
    click.echo("  ".join(f"{cell:<16}" for cell in row.cells()).rstrip())
    return row


def document(rows: list[Row], ratios: list[Ratio], rounds: int) -> str:
    facts = environment()
    versions = {"ort": facts["versions"]["onnxruntime"], **facts["versions"]}
    return ABOUT.format(
        command=f"python benchmarks/{command_line()}",
        date=facts["date"][:10],
        cpu=facts["cpu"],
        cores=facts["cores"],
        rounds=rounds,
        sizes=markdown(("model", "encoding", "values", "bytes"), [row.cells() for row in rows]),
        ratios=markdown(("model", "encoding", "", "median", "quartiles"), [each.cells() for each in ratios]),
        **{name: versions[name] for name in ("ort", "onnx", "torch")},
    )


@click.command()
@click.option("--rounds", default=15, show_default=True)
@click.option("--plus", type=click.Path(path_type=Path), help="A pruned RigL+ run, to see what it weighs.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
@click.option("--markdown", "page", type=click.Path(path_type=Path), help="Write a page with all figures.")
def main(rounds: int, plus: Path | None, json_file: Path | None, page: Path | None) -> None:
    """Print sizes, then ratios to dense."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ratios: list[Ratio] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        rows = all_sizes(folder)
        if plus:
            exported = export(plus, folder / "plus.onnx", ExportConfig(Layout("compact")))
            rows.append(printed(Row("rigl+ pruned", "compact", "fp32", exported.bytes)))
        for net in NETS:
            files = {encoding: folder / f"{net} {encoding} fp32.onnx" for encoding in ENCODINGS}
            ratios += [printed(each) for each in (*opening(files, net, rounds), *running(files, net, rounds))]
    if json_file:
        content = {"sizes": [*map(asdict, rows)], "ratios": [*map(asdict, ratios)], "environment": environment()}
        json_file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if page:
        page.write_text(document(rows, ratios, rounds), encoding="utf-8")


def all_sizes(folder: Path) -> list[Row]:
    rows = []
    for sparsity in (90, 95, 98):
        model, example = ModelSpec("lenet-300-100").build(), torch.rand(1, 1, 28, 28)
        source = dense_file(model, example, sparsity / 100, folder / f"lenet{sparsity}.onnx")
        rows += sizes(f"lenet {sparsity} %", source, folder)
    source = dense_file(resnet50(), torch.rand(NETS["resnet-50 90 %"][0]), 0.9, folder / "resnet50.onnx")
    return rows + sizes("resnet-50 90 %", source, folder, ("fp32", "fp16"))


if __name__ == "__main__":
    main()
