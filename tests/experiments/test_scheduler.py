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
import torch
from tiny import Trainer, snapshot

from rigl_compress.core.folder_lock import LOCK
from rigl_compress.experiments.scheduler import Listeners, run_all
from rigl_compress.experiments.spec import Experiment, Row
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.experiments.trial_task import Task, cores, default_jobs
from rigl_compress.experiments.trials import Trial, trials_of
from rigl_compress.pipeline.run_pipeline import EXPORTS
from rigl_compress.pipeline.train.progress import Listener, Progress
from rigl_compress.pipeline.train.stage import train
from rigl_compress.pipeline.workspace import Run

FACTS = {"recipe": "r", "method": "rigl", "seed": 0, "sparsity": 0.9, "seconds": 1.0, "data": "none"}
RESULT = {"metric": "error", "final_error": 1.0, "best_error": 1.0, **FACTS}


def rows(*pairs: tuple[str, str], seeds: int = 1, out: str = "out") -> list[Trial]:
    """Trials of rows (label, after)."""
    made = tuple(Row(label, "mnist-rigl", after=after) for label, after in pairs)
    return trials_of(Experiment("c", made, seeds=seeds), Path(out))


@dataclass
class Pretence:
    """Work that only notes what is done, when, and fails where it is asked to."""

    failing: str = ""
    finished: tuple[str, ...] = ()
    log: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, trial: Trial, listener: Listener, /) -> dict[str, Any]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            self.log.append(f"begin {trial.name}")
        listener(Progress(1, 2, 1, 1, 0.5))
        sleep(0.03)
        with self.lock:
            self.running -= 1
            self.log.append(f"end {trial.name}")
        if trial.row.label == self.failing:
            raise ValueError("no\nway")
        return RESULT

    def done(self, trial: Trial, /) -> bool:
        return trial.row.label in self.finished


@pytest.mark.usefixtures("in_threads")
def test_a_row_waits_for_the_one_it_starts_from() -> None:
    work, trials = Pretence(), rows(("a", ""), ("b", "a"), ("c", ""), seeds=2)
    found = run_all(trials, work, 2, Listeners())
    assert [outcome.trial for outcome in found] == trials
    assert all(outcome.result == RESULT for outcome in found)
    for seed in (0, 1):
        assert work.log.index(f"end a, seed {seed}") < work.log.index(f"begin b, seed {seed}")
    assert work.most == 2


@pytest.mark.usefixtures("in_threads")
def test_a_failure_takes_along_only_what_starts_from_it() -> None:
    reported: list[str] = []
    moved: list[str] = []
    listeners = Listeners(
        progressed=lambda trial, _: moved.append(trial.name), finished=lambda outcome: reported.append(str(outcome))
    )
    trials = rows(("a", ""), ("b", "a"), ("c", "b"), ("d", ""))
    found = {outcome.trial.row.label: outcome for outcome in run_all(trials, Pretence("a"), 1, listeners)}
    assert found["a"].failure == "ValueError: no way"
    assert found["b"].failure == "a, seed 0, which it starts from, failed"
    assert found["c"].failure == "b, seed 0, which it starts from, failed"
    assert found["d"].result == RESULT
    assert moved == ["a, seed 0", "d, seed 0"]
    assert reported[0] == "a, seed 0: failed, ValueError: no way"
    assert reported[-1] == "d, seed 0: error 1.00 %, best 1.00 %"
    assert len(reported) == 4


@pytest.mark.usefixtures("in_threads")
def test_what_is_done_is_not_run(tmp_path: Path) -> None:
    trials = rows(("a", ""), ("b", "a"), out=str(tmp_path))
    Run.create(trials[0].path, trials[0].recipe).write_result(RESULT)
    work = Pretence(finished=("a",))
    assert [outcome.failure for outcome in run_all(trials, work, 1, Listeners())] == ["", ""]
    assert work.log == ["begin b, seed 0", "end b, seed 0"]


class Dying:
    """Work whose process is killed."""

    def __call__(self, trial: Trial, listener: Listener, /) -> dict[str, Any]:
        if trial.seed:
            os.kill(os.getpid(), signal.SIGKILL)
        return RESULT

    def done(self, trial: Trial, /) -> bool:
        return False


def test_a_killed_process_loses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In real processes."""
    import multiprocessing

    fork = multiprocessing.get_context("fork")  # this module has no name under which another process could import it
    monkeypatch.setattr("rigl_compress.experiments.scheduler._start_process", fork.Process)
    good, bad = run_all(rows(("a", ""), seeds=2), Dying(), 2, Listeners())
    assert good.result == RESULT
    assert bad.failure == "its process was ended by SIGKILL: possibly out of memory, try fewer --jobs (twice)"


@dataclass
class DyingOnce:
    """Work whose process is killed the first time."""

    folder: Path

    def __call__(self, trial: Trial, listener: Listener, /) -> dict[str, Any]:
        mark = self.folder / f"{trial.seed}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return RESULT

    def done(self, trial: Trial, /) -> bool:
        return False


def test_a_trial_whose_process_dies_is_tried_once_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In real processes."""
    import multiprocessing

    monkeypatch.setattr(
        "rigl_compress.experiments.scheduler._start_process", multiprocessing.get_context("fork").Process
    )
    started: list[str] = []
    listeners = Listeners(started=lambda trial: started.append(trial.name))
    assert [outcome.failure for outcome in run_all(rows(("a", ""), seeds=2), DyingOnce(tmp_path), 1, listeners)] == [
        "",
        "",
    ]
    assert started == ["a, seed 0"] * 2 + ["a, seed 1"] * 2


def test_there_is_a_core() -> None:
    assert cores() >= 1


def test_trials_share_an_accelerator_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_jobs("cpu") == cores()
    monkeypatch.setattr("rigl_compress.experiments.trial_task.find_device", lambda _: torch.device("cuda"))
    assert default_jobs("auto") == 1


# Training


@pytest.fixture
def tiny_trials(tmp_path: Path) -> Callable[..., list[Trial]]:
    """Trials of the tiny recipe and what starts from it: tiny_trials("train.epochs=2")."""
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")

    def make(*changes: str) -> list[Trial]:
        source = str(tmp_path / "tiny.toml")
        made = (Row("RigL", source), Row("RigL+", source, ("start.architecture=pruned",), after="RigL"))
        return trials_of(Experiment("c", made).with_overrides(changes), tmp_path / "out")

    return make


def test_in_processes_of_one_thread(tiny_trials: Callable[..., list[Trial]], data_dir: Path) -> None:
    first, plus = run_all(tiny_trials("train.epochs=1"), Task("cpu", data_dir, train_only=True), 2, Listeners())
    assert (first.failure, plus.failure) == ("", "")
    assert first.result is not None
    assert first.result["environment"]["threads"] == 1
    assert plus.trial.run.model().spec.plan is not None
    assert not first.trial.run.pruned_file.exists()


@pytest.mark.usefixtures("in_threads")
def test_unfinished_runs_go_on_and_finished_ones_are_kept(
    tiny_trials: Callable[..., list[Trial]], data_dir: Path, tmp_path: Path, trainer: Trainer
) -> None:
    trials = tiny_trials("train.epochs=3")
    train(trials[0].recipe, tmp_path / "whole", trainer.here())
    with pytest.raises(tiny.StoppedError):
        train(trials[0].recipe, trials[0].path, trainer.here(tiny.stop_at(3 * tiny.STEPS_PER_EPOCH)))
    assert [trial.state for trial in trials] == ["resumes from its checkpoint", "to be trained"]
    task = Task("cpu", data_dir)

    def go() -> list[Outcome]:
        return run_all(trials, task, 1, Listeners())

    found = go()
    tiny.assert_same_model(trials[0].run.model(), Run.open(tmp_path / "whole").model())
    assert [trial.state for trial in trials] == ["trained", "trained"]
    assert all(trial.run.export_file(name).exists() for trial in trials for name in EXPORTS)
    before = snapshot(tmp_path / "out")
    (trials[0].path / LOCK).touch()  # its process was killed before it could remove it
    assert go() == found
    assert snapshot(tmp_path / "out") == before
    trials[0].run.export_file("compact").unlink()
    assert not task.done(trials[0])
    go()
    assert task.done(trials[0])


@pytest.mark.usefixtures("in_threads")
def test_a_run_of_train_counts(
    tiny_trials: Callable[..., list[Trial]], data_dir: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = tiny_trials("train.epochs=1")
    train(trials[0].recipe, trials[0].path, trainer.here())
    before = trials[0].run.result()
    (found, _) = run_all(trials, Task("cpu", data_dir), 1, Listeners())
    assert found.result == before
    assert trials[0].run.pruned_file.exists()
