"""How fast is a sparse network in other CPU runtimes? Stock ONNX Runtime, int8, OpenVINO, DeepSparse, MNN.

    python -m venv build/deepsparse && build/deepsparse/bin/pip install --only-binary deepsparse deepsparse
    python -m venv build/mnn && build/mnn/bin/pip install MNN numpy
    python benchmarks/peers.py --python deepsparse=build/deepsparse/bin/python --python mnn=build/mnn/bin/python \
        --json docs/results/peers.json --markdown docs/results/peers.md

Random masks, batch 1, one thread. Each runtime is a process of its own; all are open at the same time and take turns.
A ratio is the median over rounds of dense float32 in ONNX Runtime over the runtime, in CPU time of the process.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnx
import torch
from inference_networks import Case, masked, registered
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.exporters.torch_to_onnx import export_graph

WORKER = Path(__file__).with_name("peer_worker.py")
BURST = 0.2  # seconds that each runtime runs before it is the next one's turn
NETWORKS = ("resnet-50", "mobilenet-v1")
# What a row says, the runtime, and which file it opens: the same zeros for all but int8, whose weights are dense.
ROWS = {
    "ONNX Runtime, float32": ("onnxruntime", "model.onnx"),
    "ONNX Runtime, int8": ("onnxruntime", "int8.onnx"),
    "OpenVINO, float32": ("openvino", "model.onnx"),
    "MNN, sparse weights": ("mnn", "model.mnn"),
    "DeepSparse 1.8": ("deepsparse", "model.onnx"),
    "rc.InferenceSession": ("sparse", "model.onnx"),
}
ABOUT = """# Other runtimes

Dense float32 in stock ONNX Runtime over each runtime, on the same sparse network: above 1 is faster. Random masks at
the given sparsity, the first convolution and depthwise ones dense; batch 1, one thread, CPU time of the process. All
runtimes are open at the same time and take turns; in brackets the quartiles over the rounds. *int8* is the dense
network after static quantization (per channel, QDQ, calibrated on random images: for speed, not for accuracy). Measured
with
"""


class RandomImages(CalibrationDataReader):  # type: ignore[misc]
    """Eight random inputs: enough to time a quantized network, not to judge it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        generator = np.random.default_rng(0)
        self.left = [{"input": generator.random(shape, dtype=np.float32)} for _ in range(8)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next input, or nothing after the last."""
        return self.left.pop() if self.left else None


def write_models(name: str, sparsity: float, folder: Path, pythons: dict[str, str]) -> tuple[int, ...]:
    """Write the network for every runtime; return the shape of its input."""
    model, example = masked(Case(name, registered(name), 1, ()), sparsity, 0)
    shape = tuple(example.shape)
    graph = export_graph(model, example, opset=18)  # newer ones DeepSparse refuses
    graph.ir_version = min(graph.ir_version, 8)
    for value in (*graph.graph.input, *graph.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, folder / "model.onnx")
    dense = masked(Case(name, registered(name), 1, ()), 0.0, 0)[0]
    onnx.save(export_graph(dense, example), folder / "dense.onnx")
    quant_pre_process(folder / "dense.onnx", folder / "prepared.onnx")
    images = RandomImages(shape)
    quantize_static(folder / "prepared.onnx", folder / "int8.onnx", images, QuantFormat.QDQ, per_channel=True)
    if "mnn" in pythons:
        # By the compiled function: MNN.tools installs a logger by the first pip on the path, which reports home.
        script = "import sys, MNN, _tools; _tools.mnnconvert(sys.argv)"
        files = ["--modelFile", f"{folder}/model.onnx", "--MNNModel", f"{folder}/model.mnn"]
        command = [pythons["mnn"], "-c", script, "-f", "ONNX", "--bizCode", "bench", *files, "--detectSparseSpeedUp"]
        subprocess.run(command, check=True, capture_output=True)
    return shape


@contextmanager
def opened(rows: dict[str, list[str]]) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start a worker for each row; those that cannot open the model are left out with a message."""
    started = {
        label: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for label, command in rows.items()
    }
    try:
        yield {label: worker for label, worker in started.items() if ready(label, worker)}
    finally:
        for worker in started.values():
            worker.kill()
            worker.wait()


def ready(label: str, worker: subprocess.Popen[str]) -> bool:
    assert worker.stdout is not None
    line = next((line for line in worker.stdout if line.startswith("ready")), "")
    click.echo(f"{label}: {line.strip() or 'cannot open the model'}", err=True)
    return bool(line)


def seconds(worker: subprocess.Popen[str], times: int) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{times}\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


def measure(rows: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a run in each round, for each row."""
    with opened(rows) as workers:
        times = {label: max(1, int(BURST / seconds(worker, 2))) for label, worker in workers.items()}
        found: dict[str, list[float]] = {label: [] for label in workers}
        for _ in range(rounds):
            for label, worker in workers.items():
                found[label].append(seconds(worker, times[label]))
    return found


def figures(network: str, sparsity: float, found: dict[str, list[float]]) -> list[dict[str, object]]:
    """Return a row for each runtime: the median and quartiles of its ratio to dense float32 in ONNX Runtime."""
    first = np.array(next(iter(found.values())))
    rows = []
    for label, times in found.items():
        low, ratio, high = np.quantile(first / np.array(times), [0.25, 0.5, 0.75])
        facts = {"ratio": ratio, "low": low, "high": high, "ms": float(np.median(times) * 1e3)}
        rows.append({"network": network, "sparsity": sparsity, "runtime": label, **facts})
    return rows


def page(rows: list[dict[str, object]]) -> str:
    """Return the Markdown page."""
    facts = environment()
    where = f"{facts['cpu']}, {facts['cores']} cores, onnxruntime {facts['versions']['onnxruntime']}"
    head = f"{ABOUT}`python benchmarks/{command_line()}` on {facts['date'][:10]}: {where}.\n\n"
    lines = [
        f"| {row['network']} | {row['sparsity']:.0%} | {row['runtime']} | "
        f"**{row['ratio']:.2f}** [{row['low']:.2f}, {row['high']:.2f}] | {row['ms']:.3g} |"
        for row in rows
    ]
    return head + "| network | sparsity | runtime | ratio | ms |\n|---|---|---|---|---|\n" + "\n".join(lines) + "\n"


@click.command()
@click.option("--python", "pythons", multiple=True, metavar="RUNTIME=PATH", help="Python that has deepsparse or mnn.")
@click.option("--network", "networks", multiple=True, default=NETWORKS, show_default=True)
@click.option("--sparsity", "sparsities", multiple=True, type=float, default=(0.9,), show_default=True)
@click.option("--rounds", default=9, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the figures into this file.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(
    pythons: tuple[str, ...],
    networks: tuple[str, ...],
    sparsities: tuple[float, ...],
    rounds: int,
    json_file: Path | None,
    markdown: Path | None,
) -> None:
    """Print a row for each network, sparsity and runtime. Runtimes without a Python of their own use this one."""
    torch.set_num_threads(1)
    by_runtime = dict(each.split("=", 1) for each in pythons)
    rows: list[dict[str, object]] = []
    for network, sparsity in ((network, sparsity) for network in networks for sparsity in sparsities):
        with TemporaryDirectory() as name:
            shape = write_models(network, sparsity, Path(name), by_runtime)
            commands = {
                label: [by_runtime.get(runtime, sys.executable), str(WORKER), runtime, f"{name}/{file}"]
                + [str(size) for size in shape]
                for label, (runtime, file) in ROWS.items()
                if (Path(name) / file).exists()
            }
            rows += figures(network, sparsity, measure(commands, rounds))
    click.echo(page(rows))
    if json_file:
        content = {"format": 1, "command": command_line(), "environment": environment(), "rows": rows}
        json_file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if markdown:
        markdown.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
