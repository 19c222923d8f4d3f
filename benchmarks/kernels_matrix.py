"""Do the sparse operators work in old and new versions of ONNX Runtime?

    python benchmarks/kernels_matrix.py [--version 1.18.1 --version 1.31.1]

Each version is installed into a fresh virtual environment of its own, which knows nothing of this package: it loads the
library with the operators and files that were rewritten for them, as any other host would.
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

from rigl_compress.exporters.graph import export_graph
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.models.layers import sparse_parameters
from rigl_compress.runtime.library import library_path
from rigl_compress.runtime.rewrite import rewrite

LOOK = """
import json, sys
import numpy as np, onnxruntime as ort
library, names = json.load(sys.stdin)
told = {}
for name in names:
    for threads in (1, 2):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        try:
            options.register_custom_ops_library(library)
            session = ort.InferenceSession(name, options, providers=["CPUExecutionProvider"])
            np.save(f"{name}.{threads}.npy", session.run(None, {"input": np.load(name + ".input.npy")})[0])
            told.setdefault(name, "")
        except Exception as error:
            told[name] = str(error).splitlines()[0]
json.dump(told, sys.stdout)
"""


def make_files(folder: Path) -> dict[str, np.ndarray]:
    """Write rewritten networks and inputs; give the outputs of the plain ones."""
    torch.manual_seed(0)
    expected = {}
    for name, (model, example) in networks().items():
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
        return error
    off = max(largest_difference([np.load(f"{name}.{threads}.npy")], [expected]) for threads in (1, 2))
    return "yes" if off < 1e-5 else f"off by {off:.1g}"


@click.command()
@click.option(
    "--version", "versions", multiple=True, default=("1.18.1", "1.20.1", "1.24.1", "1.31.1"), show_default=True
)
def main(versions: tuple[str, ...]) -> None:
    """Print what each version makes of each network; fail if one does not work."""
    failed = False
    with TemporaryDirectory() as name:
        expected = make_files(Path(name))
        for version in versions:
            python = install(version, Path(name) / f"venv-{version}")
            order = json.dumps([str(library_path()), list(expected)])
            done = subprocess.run([python, "-c", LOOK], input=order, capture_output=True, text=True)
            errors = json.loads(done.stdout) if done.returncode == 0 else dict.fromkeys(expected, "crashed")
            for path, wanted in expected.items():
                told = verdict(path, errors[path], wanted)
                failed |= told != "yes"
                click.echo(f"onnxruntime {version}, {Path(path).name}: {told}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
