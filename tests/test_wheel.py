"""The wheel without a compiler: it is built, it says that it has no kernels, and its tag promises no platform."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

pytest.importorskip("scikit_build_core")
ROOT = Path(__file__).parents[1]
PARTS = ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "src", "native", "recipes")
PACKAGES = (
    "cli",
    "core",
    "data",
    "experiments",
    "exporters",
    "integrations",
    "models",
    "onnx_pruning",
    "pipeline",
    "pruning",
    "runtime",
    "sparsity",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what a wheel is made of: a build writes beside it."""
    folder = tmp_path / "source"
    folder.mkdir()
    for part in (*PARTS, *PACKAGES):
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


def build(source: Path, path: str) -> subprocess.CompletedProcess[str]:
    words = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "--verbose",
        "-w",
        "wheels",
    ]
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    return subprocess.run(
        words, cwd=source, env={**kept, "PATH": path}, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture
def no_compiler(tmp_path: Path) -> str:
    """A PATH with CMake and Ninja and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cmake", "ninja"):
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"no {name} here")
        (folder / name).symlink_to(found)
    return str(folder)


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_for_any_platform(source: Path, no_compiler: str) -> None:
    done = build(source, no_compiler)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = (source / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    names = ZipFile(wheel).namelist()
    assert "rigl_compress/runtime/session.py" in names
    assert not [name for name in names if name.endswith(".so")]
    assert "was built without its sparse kernels" in done.stdout + done.stderr


@pytest.mark.slow
def test_kernels_that_do_not_compile_are_an_error(source: Path) -> None:
    """And not a wheel without them."""
    if not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("no compiler here")
    for file in (source / "native").glob("*.cpp"):
        file.write_text("this is no C++\n", encoding="utf-8")
    done = build(source, os.environ["PATH"])
    assert done.returncode != 0
    assert "The sparse kernels could not be built with" in done.stdout + done.stderr
    assert not list(source.rglob("*.whl"))
