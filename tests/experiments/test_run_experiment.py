"""Experiments as a whole: grids of runs, what is kept, and the results file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from tiny import Trainer, snapshot, untouched

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.grid import grid_experiment
from rigl_compress.experiments.results import RESULTS, ExperimentResult, TrialResult
from rigl_compress.experiments.run_experiment import run_experiment
from rigl_compress.experiments.scheduler import Listeners
from rigl_compress.experiments.trial_task import Task
from rigl_compress.experiments.trials import Trial, trials_of
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.train.stage import train
from rigl_compress.pipeline.workspace import Run

Go = Callable[..., ExperimentResult]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """The tiny recipe as a file, one epoch long."""
    path = tmp_path / "tiny.toml"
    path.write_text(tiny.recipe("train.epochs=1").to_toml(), encoding="utf-8")
    return str(path)


@pytest.fixture
def trials(source: str, tmp_path: Path) -> Callable[..., list[Trial]]:
    """Plan a grid over the tiny recipe: trials("sparsity.method=rigl,set", seeds=2)."""

    def plan(*grid: str, seeds: int = 1, overrides: tuple[str, ...] = ()) -> list[Trial]:
        return trials_of(grid_experiment(source, grid, overrides).with_seeds(seeds), tmp_path / "out")

    return plan


@pytest.fixture
def go(source: str, tmp_path: Path, data_dir: Path) -> Go:
    """Train a grid over the tiny recipe: go("sparsity.method=rigl,set", seeds=2)."""

    def run(
        *grid: str,
        seeds: int = 1,
        overrides: tuple[str, ...] = (),
        jobs: int = 1,
        listeners: Listeners | None = None,
    ) -> ExperimentResult:
        experiment = grid_experiment(source, grid, overrides).with_seeds(seeds)
        task = Task("cpu", data_dir, train_only=True)
        planned = trials_of(experiment, tmp_path / "out")
        return run_experiment(experiment, planned, task, jobs, listeners or Listeners())

    return run


def runs_of(result: ExperimentResult) -> list[TrialResult]:
    return [run for row in result.rows for run in row.runs]


def test_two_by_two(go: Go, tmp_path: Path) -> None:
    """In two processes; one setting fails in both seeds, and the others are not lost."""
    reported: list[str] = []
    listeners = Listeners(finished=lambda outcome: reported.append(str(outcome)))
    overrides = ("sparsity.method=set",)
    result = go("sparsity.end=11,10000", seeds=2, overrides=overrides, jobs=2, listeners=listeners)

    good, bad = result.rows
    assert result.failed
    for run in good.runs:
        assert run.result is not None
        assert (run.result["method"], run.result["seed"]) == ("set", run.seed)
        assert run.result["environment"]["threads"] == 1
        assert run.run.model().step == tiny.STEPS_PER_EPOCH
        assert run.folder == str(tmp_path / "out" / "end=11" / f"seed={run.seed}")
    for run in bad.runs:
        assert run.result is None
        assert run.failure.startswith("InputError: updates end at step 10000, but the run has only 15 steps")
    assert len(reported) == 4

    kept = json.loads((tmp_path / "out" / RESULTS).read_text())
    assert [row["set"] for row in kept["rows"]] == [[*overrides, f"sparsity.end={end}"] for end in (11, 10000)]
    assert [[run["seed"] for run in row["runs"]] for row in kept["rows"]] == [[0, 1], [0, 1]]
    assert ExperimentResult.load(tmp_path / "out") == result


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{}", "results of format None, expected 1"), ('{"format": 1}', "is damaged"), ("[", "cannot read")],
)
def test_a_damaged_results_file(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text(text)
    with pytest.raises(InputError, match=problem):
        ExperimentResult.load(tmp_path)


@pytest.mark.usefixtures("in_threads")
def test_finished_runs_are_not_repeated(go: Go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []

    def counting(recipe: Recipe, *arguments: Any, **options: Any) -> SparseModel:
        trained.append(recipe.seed)
        return train(recipe, *arguments, **options)

    monkeypatch.setattr("rigl_compress.experiments.trial_task.train", counting)
    first = go(seeds=2)
    before = snapshot(tmp_path / "out")
    again = go(seeds=3)
    assert runs_of(again)[:2] == runs_of(first)
    assert trained == [0, 1, 2]
    after = snapshot(tmp_path / "out")
    assert all(after[name] == content for name, content in before.items() if name != RESULTS)
    assert len(json.loads(after[RESULTS])["rows"][0]["runs"]) == 3


@pytest.mark.usefixtures("in_threads")
def test_an_unfinished_run_goes_on(
    go: Go, trials: Callable[..., list[Trial]], tmp_path: Path, trainer: Trainer
) -> None:
    (trial,) = trials(overrides=("train.epochs=3",))
    train(trial.recipe, tmp_path / "whole", trainer.here())
    with pytest.raises(tiny.StoppedError):
        train(trial.recipe, trial.path, trainer.here(tiny.stop_at(3 * tiny.STEPS_PER_EPOCH)))
    assert len(list(trial.run.metrics())) == 2
    assert not go(overrides=("train.epochs=3",)).failed
    tiny.assert_same_model(trial.run.model(), Run.open(tmp_path / "whole").model())


def test_a_wrong_recipe_is_an_error_before_the_first_run(go: Go, tmp_path: Path) -> None:
    with untouched(tmp_path), pytest.raises(InputError, match=r"sparsity is 1\.5"):
        go("sparsity.sparsity=0.5,1.5")


def test_a_run_of_another_recipe_is_not_overwritten(go: Go, trials: Callable[..., list[Trial]], tmp_path: Path) -> None:
    Run.create(trials()[0].path, tiny.recipe("train.epochs=9"))
    with untouched(tmp_path), pytest.raises(InputError, match="holds a run of another recipe: choose another folder"):
        go()


@pytest.mark.usefixtures("in_threads")
def test_after_an_interrupt_no_run_is_begun(go: Go, tmp_path: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(seeds=12, listeners=Listeners(finished=interrupt))
    assert 1 <= len(list((tmp_path / "out" / "tiny").iterdir())) < 12
    assert not (tmp_path / "out" / RESULTS).exists()
