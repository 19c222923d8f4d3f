"""Do the sparse operators work in old and new versions of ONNX Runtime?

    python benchmarks/kernels_matrix.py [--version 1.18.1 --version 1.31.1] [--markdown docs/results/kernels-matrix.md]

Each version is installed into a fresh virtual environment of its own, which knows nothing of this package: it loads the
library with the operators and files that were rewritten for them, as any other host would. A version before 1.18 must
refuse the library in a sentence.
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import onnxruntime as ort
import torch
from ort_matrix import install, networks
from torch import nn

from rigl_compress.core.provenance import environment
from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.runtime.kernel_library import OLDEST_RUNTIME, kernels_library
from rigl_compress.runtime.kernels import chosen_set
from rigl_compress.runtime.rewrite import rewrite

VERSIONS = ("1.17.3", "1.18.1", "1.20.1", "1.22.1", "1.24.1", "1.31.1")
REFUSED = "needs ONNX Runtime 1.18 or newer"
ABOUT = """# Sparse operators and versions of ONNX Runtime

Each network has 80 % zeros and all of its layers rewritten to our operators. *yes*: a fresh environment that has this
version of ONNX Runtime, the library and the file, and nothing of this package, gives the outputs that the plain network
gives in ONNX Runtime here, to 10⁻⁵ of the largest, with one thread and with two. *refused*: the library says in a
sentence that the runtime is too old. Made by
"""
LOOK = """
import json, sys
import numpy as np, onnxruntime as ort
library, names = json.load(sys.stdin)
errors = {}
for name in names:
    for threads in (1, 2):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        try:
            options.register_custom_ops_library(library)
            session = ort.InferenceSession(name, options, providers=["CPUExecutionProvider"])
            np.save(f"{name}.{threads}.npy", session.run(None, {"input": np.load(name + ".input.npy")})[0])
            errors.setdefault(name, "")
        except Exception as error:
            errors[name] = str(error).splitlines()[0]
json.dump(errors, sys.stdout)
"""


class BothWays(nn.Module):
    """A recurrent network that reads in both directions and keeps its last states."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(24, 32, batch_first=True, bidirectional=True), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, steps, 24] → [batch, 10]."""
        answer: torch.Tensor = self.out(self.gru(x)[1].transpose(0, 1).flatten(1))
        return answer


def all_networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    known = {name: each for name, each in networks().items() if name != "signs"}  # -0.0 is no matter here
    return {**known, "gru, both ways": (BothWays(), torch.rand(1, 7, 24))}


def make_files(folder: Path) -> dict[str, np.ndarray]:
    """Write rewritten networks and inputs; return the outputs of the plain ones."""
    torch.manual_seed(0)
    expected = {}
    for name, (model, example) in all_networks().items():
        for parameter in sparse_parameters(model.eval()).values():
            parameter.data.masked_fill_(torch.rand_like(parameter) < 0.8, 0)
        plain = export_graph(model, example)
        x = torch.rand(3, *example.shape[1:]).numpy()
        path = str(folder / name)
        np.save(f"{path}.input.npy", x)
        Path(path).write_bytes(rewrite(plain, lambda *_: True).model.SerializeToString())
        session = ort.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])
        expected[path] = session.run(None, {"input": x})[0]
    return expected


def verdict(name: str, error: str, expected: np.ndarray) -> str:
    if error:
        return "refused" if REFUSED in error else error
    off = max(largest_difference([np.load(f"{name}.{threads}.npy")], [expected]) for threads in (1, 2))
    return "yes" if off < 1e-5 else f"off by {off:.1g}"


def look(version: str, folder: Path, expected: dict[str, np.ndarray]) -> list[str]:
    """Install a version, and say what it makes of each network."""
    python = install(version, folder / f"venv-{version}")
    order = json.dumps([str(kernels_library()), list(expected)])
    done = subprocess.run([python, "-c", LOOK], input=order, capture_output=True, text=True)
    errors = json.loads(done.stdout) if done.returncode == 0 else dict.fromkeys(expected, "crashed")
    return [verdict(path, errors[path], wanted) for path, wanted in expected.items()]


def wanted(version: str) -> str:
    return "yes" if tuple(map(int, version.split(".")[:2])) >= OLDEST_RUNTIME else "refused"


@click.command()
@click.option("--version", "versions", multiple=True, default=VERSIONS, show_default=True)
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(versions: tuple[str, ...], markdown: Path | None) -> None:
    """Print a row for each network, a column for each version; fail if one does not do what it should."""
    with TemporaryDirectory() as name:
        expected = make_files(Path(name))
        found = {version: look(version, Path(name), expected) for version in versions}
    rows = zip((Path(path).name for path in expected), *found.values(), strict=True)
    lines = [f"| network | {' | '.join(versions)} |", f"|---|{'---|' * len(versions)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    click.echo("\n".join(lines))
    if markdown:
        facts = environment()
        here = f"with onnxruntime {facts['versions']['onnxruntime']},\non {facts['date'][:10]}"
        made = f"{facts['cpu']} ({chosen_set()} kernels), {here}"
        intro = f"{ABOUT}`python benchmarks/kernels_matrix.py --markdown {markdown}`, seed 0, on {made}.\n\n"
        markdown.write_text(intro + "\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(any(verdict != wanted(version) for version, each in found.items() for verdict in each))


if __name__ == "__main__":
    main()
