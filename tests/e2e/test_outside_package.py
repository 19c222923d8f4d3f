"""A method from a package outside of the repository goes through the whole pipeline by the command line alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from rigl_compress.pipeline.workspace import Run

MODULE = '''
"""A package of one file."""
import rigl_compress as rc
from rigl_compress.sparsity import connection_scores, training_flops
from rigl_compress.sparsity.methods import on_schedule


def busy_neighbours(view):
    size = view.weight.abs()
    return size.sum(dim=0, keepdim=True) + size.sum(dim=1, keepdim=True)


BUSY = rc.Method(
    "busy",
    "drop the smallest weights, grow beside large ones",
    when=on_schedule,
    drop=connection_scores.magnitude,
    grow=busy_neighbours,
    cost=training_flops.static,
)
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with the package as pip leaves it: a module, and metadata with an entry point."""
    folder = tmp_path / "site"
    info = folder / "busy_method-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "busy_method.py").write_text(MODULE, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: busy-method\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[rigl_compress.methods]\nbusy = busy_method:BUSY\n", encoding="utf-8")
    return folder


def command(words: str, folder: Path, path: Path) -> str:
    """Run the console script in a process of its own and return what it prints."""
    script = Path(sys.executable).with_name("rigl-compress")
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [script, *words.split()], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("method", ["busy", "busy_method:BUSY"], ids=["by entry point", "by reference"])
def test_it_is_trained_pruned_exported_and_benched(method: str, site: Path, tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
    change = f"--set sparsity.method={method} --set train.epochs=1"
    command(f"train --recipe tiny.toml -o run --data-dir {data_dir} {change}", tmp_path, site)
    command("prune run", tmp_path, site)
    command("export run --output busy.onnx", tmp_path, site)
    command("bench run --openings 1 --rounds 2 --threads 1", tmp_path, site)
    result = Run.open(tmp_path / "run").result()
    assert result["method"] == method
    assert result["updates"] > 0
    assert result["training_gflops"]["exact-schedule"] > 0
    assert result["not_counted"] == {}
    assert (tmp_path / "busy.onnx").exists()
    # The run can be resumed without a flag: the user named the method here.
    command(f"train --resume run --data-dir {data_dir}", tmp_path, site)
    listed = json.loads(command("list --json", tmp_path, site))
    assert listed["methods"]["busy"] == "drop the smallest weights, grow beside large ones"
