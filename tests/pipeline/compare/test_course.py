"""Many runs at a time."""

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import tiny
from tiny import Trainer, snapshot

from rigl_compress.pipeline.compare.cells import Cell, cells_of
from rigl_compress.pipeline.compare.comparison import Comparison, Row
from rigl_compress.pipeline.compare.course import Outcome, Watcher, run_all
from rigl_compress.pipeline.compare.work import Task, cores
from rigl_compress.pipeline.train.progress import Listener, Progress
from rigl_compress.pipeline.train.stage import train
from rigl_compress.pipeline.workspace import Run

FACTS = {"recipe": "r", "method": "rigl", "seed": 0, "sparsity": 0.9, "seconds": 1.0, "data": "none"}
RESULT = {"metric": "error", "final_error": 1.0, "best_error": 1.0, **FACTS}


def rows(*pairs: tuple[str, str], seeds: int = 1, out: str = "out") -> list[Cell]:
    """Cells of rows (label, after)."""
    made = tuple(Row(label, "mnist-rigl", after=after) for label, after in pairs)
    return cells_of(Comparison("c", made, seeds=seeds), Path(out))


@dataclass
class Pretence:
    """Work that only notes what is done, when, and fails where it is told to."""

    failing: str = ""
    finished: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, cell: Cell, listener: Listener, /) -> dict[str, Any]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.log.append(f"begin {cell.name}")
        listener(Progress(1, 2, 1, 1, 0.5))
        sleep(0.03)
        with self.lock:
            self.running -= 1
            self.log.append(f"end {cell.name}")
        if cell.row.label == self.failing:
            raise ValueError("no\nway")
        return RESULT

    def done(self, cell: Cell, /) -> bool:
        return cell.row.label in self.finished


@pytest.mark.usefixtures("in_threads")
def test_a_row_waits_for_the_one_it_starts_from() -> None:
    work, cells = Pretence(), rows(("a", ""), ("b", "a"), ("c", ""), seeds=2)
    found = run_all(cells, work, 2, Watcher())
    assert [outcome.cell for outcome in found] == cells
    assert all(outcome.result == RESULT for outcome in found)
    for seed in (0, 1):
        assert work.log.index(f"end a, seed {seed}") < work.log.index(f"begin b, seed {seed}")
    assert work.most == 2


@pytest.mark.usefixtures("in_threads")
def test_a_failure_takes_along_only_what_starts_from_it() -> None:
    told: list[str] = []
    moved: list[str] = []
    watcher = Watcher(moved=lambda cell, _: moved.append(cell.name), ended=lambda outcome: told.append(str(outcome)))
    cells = rows(("a", ""), ("b", "a"), ("c", "b"), ("d", ""))
    found = {outcome.cell.row.label: outcome for outcome in run_all(cells, Pretence("a"), 1, watcher)}
    assert found["a"].failure == "ValueError: no way"
    assert found["b"].failure == "a, seed 0, which it starts from, failed"
    assert found["c"].failure == "b, seed 0, which it starts from, failed"
    assert found["d"].result == RESULT
    assert moved == ["a, seed 0", "d, seed 0"]
    assert told[0] == "a, seed 0: failed, ValueError: no way"
    assert told[-1] == "d, seed 0: error 1.00 %, best 1.00 %"
    assert len(told) == 4


@pytest.mark.usefixtures("in_threads")
def test_what_is_done_is_not_run(tmp_path: Path) -> None:
    cells = rows(("a", ""), ("b", "a"), out=str(tmp_path))
    Run.create(cells[0].path, cells[0].recipe).write_result(RESULT)
    work = Pretence(finished=("a",))
    assert [outcome.failure for outcome in run_all(cells, work, 1, Watcher())] == ["", ""]
    assert work.log == ["begin b, seed 0", "end b, seed 0"]


class Dying:
    """Work whose process is killed."""

    def __call__(self, cell: Cell, listener: Listener, /) -> dict[str, Any]:
        if cell.seed:
            os.kill(os.getpid(), signal.SIGKILL)
        return RESULT

    def done(self, cell: Cell, /) -> bool:
        return False


def test_a_killed_process_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In real processes."""
    import multiprocessing

    fork = multiprocessing.get_context("fork")  # this module has no name under which another process could import it
    monkeypatch.setattr("rigl_compress.pipeline.compare.course._start_process", fork.Process)
    good, bad = run_all(rows(("a", ""), seeds=2), Dying(), 2, Watcher())
    assert good.result == RESULT
    assert bad.failure == "its process was ended by SIGKILL: is there too little memory? Try fewer --jobs"


def test_there_is_a_core() -> None:
    assert cores() >= 1


# Training


@pytest.fixture
def tiny_cells(tmp_path: Path) -> Callable[..., list[Cell]]:
    """Cells of the tiny recipe and what starts from it: tiny_cells("train.epochs=2")."""
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")

    def make(*changes: str) -> list[Cell]:
        source = str(tmp_path / "tiny.toml")
        made = (Row("RigL", source), Row("RigL+", source, ("start.architecture=alive",), after="RigL"))
        return cells_of(Comparison("c", made), tmp_path / "out", changes)

    return make


def test_in_processes_of_one_thread(tiny_cells: Callable[..., list[Cell]], data_dir: Path) -> None:
    first, plus = run_all(tiny_cells("train.epochs=1"), Task("cpu", data_dir, train_only=True), 2, Watcher())
    assert (first.failure, plus.failure) == ("", "")
    assert first.result is not None
    assert first.result["environment"]["threads"] == 1
    assert plus.cell.run.model().spec.plan is not None
    assert not first.cell.run.pruned_file.exists()


@pytest.mark.usefixtures("in_threads")
def test_unfinished_runs_go_on_and_finished_ones_are_kept(
    tiny_cells: Callable[..., list[Cell]], data_dir: Path, tmp_path: Path, trainer: Trainer
) -> None:
    cells = tiny_cells("train.epochs=3")
    train(cells[0].recipe, tmp_path / "whole", trainer.here())
    with pytest.raises(tiny.StoppedError):
        train(cells[0].recipe, cells[0].path, trainer.here(tiny.stop_at(3 * tiny.STEPS_PER_EPOCH)))
    assert [cell.state for cell in cells] == ["goes on from its checkpoint", "to be trained"]
    task = Task("cpu", data_dir)

    def go() -> list[Outcome]:
        return run_all(cells, task, 1, Watcher())

    found = go()
    tiny.assert_same_model(cells[0].run.model(), Run.open(tmp_path / "whole").model())
    assert [cell.state for cell in cells] == ["trained", "trained"]
    assert all(cell.run.export_file(name).exists() for cell in cells for name in ("dense", "sparse", "compact"))
    before = snapshot(tmp_path / "out")
    assert go() == found
    assert snapshot(tmp_path / "out") == before
    cells[0].run.export_file("compact").unlink()
    assert not task.done(cells[0])
    go()
    assert task.done(cells[0])


@pytest.mark.usefixtures("in_threads")
def test_a_run_of_train_counts(
    tiny_cells: Callable[..., list[Cell]], data_dir: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tiny_cells("train.epochs=1")
    train(cells[0].recipe, cells[0].path, trainer.here())
    before = cells[0].run.result()
    (found, _) = run_all(cells, Task("cpu", data_dir), 1, Watcher())
    assert found.result == before
    assert cells[0].run.pruned_file.exists()
