"""Do old and new versions of ONNX Runtime open the files, fold the weights, and give the same outputs?

    python benchmarks/ort_matrix.py [--version 1.18.1 --version 1.31.1] [--markdown docs/results/ort-matrix.md]

Each version is installed into a fresh virtual environment of its own, which knows nothing of this package.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import onnx
import torch
from torch import nn

from rigl_compress.core.provenance import environment
from rigl_compress.exporters.onnx_export import ExportedModel, Layout, export_onnx, reencode
from rigl_compress.exporters.sparsify import encoding_names
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.exporters.verify import VerificationError, check_folded, largest_difference
from rigl_compress.models.sparse_parameters import sparse_parameters

ABOUT = """# Versions of ONNX Runtime

Networks: a perceptron, the same from a tool that leaves -0.0, convolutions (one of them depthwise, normalisation
folded), linear layers on sequences, a GRU; all with 90 % zeros. *yes*: all five open at the default level, every weight
is rebuilt at load and not again in a run, and the outputs are those of the version that checked the files when they
were made. Made by"""
# Runs in the other environment: opens each file at the default level, keeps the optimized graph and the outputs.
LOOK = """
import json, sys
import numpy as np, onnxruntime as ort
errors = {}
for name in json.load(sys.stdin):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = name + ".optimized"
    try:
        session = ort.InferenceSession(name, options, providers=["CPUExecutionProvider"])
        np.save(name + ".npy", session.run(None, {"input": np.load(name.rsplit("+", 2)[0] + ".input.npy")})[0])
        errors[name] = ""
    except Exception as error:
        errors[name] = str(error).splitlines()[0]
json.dump({"version": ort.__version__, "errors": errors}, sys.stdout)
"""


class Gated(nn.Module):
    """A recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, steps, 24] → [batch, steps, 10]."""
        answer: torch.Tensor = self.out(self.gru(x)[0])
        return answer


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    convolutions = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU()),
        *(nn.Conv2d(32, 48, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10)),
    )
    return {
        "perceptron": (nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), torch.rand(1, 64)),
        "signs": (nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), torch.rand(1, 64)),
        "convolutions": (convolutions, torch.rand(1, 3, 12, 12)),
        "sequences": (nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 10)), torch.rand(1, 5, 32)),
        "gru": (Gated(), torch.rand(1, 7, 24)),
    }


def make_files(folder: Path) -> dict[str, ExportedModel]:
    """Export every network in every encoding and value type."""
    torch.manual_seed(0)
    files = {}
    for net, (model, example) in networks().items():
        for parameter in sparse_parameters(model).values():
            parameter.data.masked_fill_(torch.rand_like(parameter) < 0.9, 0)
        plain = export_onnx(model, example, folder / f"{net}.onnx", encoding="dense").path
        if net == "signs":
            make_zeros_negative(plain)
        np.save(folder / f"{net}.input.npy", torch.rand(3, *example.shape[1:]).numpy())
        for encoding in encoding_names():
            for values in VALUES:
                path = folder / f"{net}+{encoding}+{values}"
                files[str(path)] = reencode(plain, path, Layout(encoding, values))
    return files


def make_zeros_negative(path: Path) -> None:
    """Make every second zero -0.0, as tools do that multiply by masks."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).copy()
        if array.ndim > 1 and array.dtype == np.float32:
            zeros = np.flatnonzero(array == 0)[::2]
            array.reshape(-1)[zeros] = -0.0
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    onnx.save(model, path)


def look(python: Path | str, files: list[str]) -> dict[str, Any]:
    done = subprocess.run([python, "-c", LOOK], input=json.dumps(files), capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    outputs = {name: np.load(f"{name}.npy") for name in files if not report["errors"][name]}
    return {**report, "outputs": outputs}


def install(version: str, folder: Path) -> Path:
    """Make a virtual environment with this version alone; versions before 1.19 were built for numpy 1."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    numpy = "numpy<2" if tuple(map(int, version.split(".")[:2])) < (1, 19) else "numpy"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"onnxruntime=={version}", numpy], check=True)
    return python


def verdict(name: str, found: dict[str, Any], here: dict[str, Any]) -> str:
    """Return what a version makes of a file."""
    if found["errors"][name]:
        return "does not open"
    try:
        check_folded(onnx.load(f"{name}.optimized"), onnx.load(name))
    except VerificationError:
        return "does not fold"
    off = largest_difference([found["outputs"][name]], [here["outputs"][name]])
    return "yes" if off < 1e-5 else f"off by {off:.1g}"


@click.command()
@click.option("--version", "versions", multiple=True, default=("1.18.1", "1.31.1"), show_default=True)
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(versions: tuple[str, ...], markdown: Path | None) -> None:
    """Print a row for each encoding and value type, a column for each version."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = list(make_files(folder))
        here = look(sys.executable, files)
        table: dict[tuple[str, str], list[str]] = {(each, kind): [] for each in encoding_names() for kind in VALUES}
        for version in versions:
            found = look(install(version, folder / f"venv-{version}"), files)
            for encoding, values in table:
                verdicts = {verdict(each, found, here) for each in files if each.endswith(f"+{encoding}+{values}")}
                table[encoding, values].append("yes" if verdicts == {"yes"} else ", ".join(sorted(verdicts - {"yes"})))
    lines = [f"| encoding | values | {' | '.join(versions)} |", f"|---|---|{'---|' * len(versions)}"]
    lines += [f"| `{encoding}` | {values} | {' | '.join(verdicts)} |" for (encoding, values), verdicts in table.items()]
    click.echo("\n".join(lines))
    if markdown:
        facts = environment()
        made = f"onnx {facts['versions']['onnx']} and torch {facts['versions']['torch']}, on {facts['date'][:10]}"
        intro = f"{ABOUT}\n`python benchmarks/ort_matrix.py`, with {made}.\n\n"
        markdown.write_text(intro + "\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(any(verdicts != "yes" for row in table.values() for verdicts in row))


if __name__ == "__main__":
    main()
