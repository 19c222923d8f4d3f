"""Trials on a Ray cluster."""

import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from tiny import Cli

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "ray_sweep.py"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
    return tmp_path / "tiny.toml"


def test_a_missing_package_is_named(
    cli: Cli, recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = cli("sweep", "--recipe", recipe_file, "--engine", "ray", "-o", tmp_path / "out")
    assert done.code == 2
    assert "--engine ray needs the package ray: install it with `pip install rigl-compress[ray]`" in done.err


def test_an_unknown_engine(cli: Cli, recipe_file: Path, tmp_path: Path) -> None:
    done = cli("sweep", "--recipe", recipe_file, "--engine", "dask", "-o", tmp_path / "out")
    assert done.code == 2
    assert "unknown engine 'dask': use local, ray or ray:ADDRESS" in done.err


@pytest.mark.slow
def test_a_grid_of_eight_survives_the_loss_of_a_node() -> None:
    pytest.importorskip("ray")
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("8 runs, 0 failed, one of two nodes killed after 4")
