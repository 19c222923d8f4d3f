"""A grid of runs ends with the process that the user started, and resumes with the same command."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from uuid import uuid4

import pytest
import tiny
from tiny import assert_same_model, metrics_of

from rigl_compress.core.folder_lock import leftover
from rigl_compress.pipeline.workspace import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc here"),
]
MAIN = "from rigl_compress.cli.main import main; main()"
MARK = "RIGL_TEST_OF_PROCESSES"
SECONDS = 300  # a busy machine takes its time to import torch


def heed_interrupts() -> None:
    """Undo what a shell does to its background jobs: it lets them ignore SIGINT, and they pass that on."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Grid:
    """A command that runs a tiny grid in processes, all of which carry a mark."""

    def __init__(self, command: str, tmp_path: Path, data_dir: Path) -> None:
        source = tmp_path / "tiny.toml"
        source.write_text(tiny.recipe("train.epochs=12").to_toml(), encoding="utf-8")
        self.out, self.mark = tmp_path / "out", f"{MARK}={uuid4()}"
        options = ["--recipe", source, "-o", self.out, "--seeds", 3, "--jobs", 2, "--data-dir", data_dir]
        options += ["--grid", "sparsity.method=rigl"] + (["--train-only"] if command == "compare" else [])
        self.command = [sys.executable, "-c", MAIN, command, *map(str, options)]

    def start(self) -> "subprocess.Popen[str]":
        environment = {**os.environ, **dict([self.mark.split("=")]), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            preexec_fn=heed_interrupts,
        )

    def runs(self) -> list[Run]:
        return [Run(path.parent) for path in sorted(self.out.rglob("recipe.toml"))]

    def processes(self) -> list[int]:
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if self.marked(path)]

    def marked(self, path: Path) -> bool:
        try:
            return self.mark.encode() in path.read_bytes()
        except OSError:
            return False


def wait(condition: object, what: str) -> None:
    deadline = monotonic() + SECONDS
    while not condition():  # type: ignore[operator]
        assert monotonic() < deadline, what
        sleep(0.02)


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("sweep", signal.SIGKILL),
        ("sweep", signal.SIGINT),
        ("compare", signal.SIGTERM),
        ("compare", signal.SIGINT),
    ],
)
def test_workers_end_with_their_parent(
    command: str, number: signal.Signals, tmp_path: Path, data_dir: Path, trainer: tiny.Trainer
) -> None:
    grid = Grid(command, tmp_path, data_dir)
    first = grid.start()
    wait(lambda: any(run.checkpoint_file.exists() for run in grid.runs()), "no run was begun")
    os.kill(first.pid, number)
    said, _ = first.communicate(timeout=SECONDS)
    assert first.returncode == (130 if number == signal.SIGINT else -number), said
    wait(lambda: not grid.processes(), "processes go on")
    assert len(grid.runs()) < 3 or not all(run.result_file.exists() for run in grid.runs())

    again = grid.start()
    said, _ = again.communicate(timeout=SECONDS)
    assert again.returncode == 0, said
    for seed, run in enumerate(sorted(grid.runs(), key=lambda run: run.recipe().seed)):
        whole = trainer("train.epochs=12", f"seed={seed}", run=f"whole-{seed}")
        assert_same_model(run.model(), whole.model())
        assert metrics_of(run) == metrics_of(whole)
    assert not [path for path in grid.out.rglob("*") if leftover(path)]
