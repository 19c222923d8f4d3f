"""Searches with Optuna, the real package: which trials run, which are given up, and what a resumed search does."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from tiny import Cli

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.optuna_search import JOURNAL, OptunaSearch
from rigl_compress.experiments.ray_engine import Board, _Cluster
from rigl_compress.experiments.results import RESULTS, ExperimentResult
from rigl_compress.experiments.run_search import run_search, search_remarks
from rigl_compress.experiments.scheduler import Listeners, Schedule, run_all
from rigl_compress.experiments.search_plan import SearchPlan
from rigl_compress.experiments.search_space import parse_space
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.experiments.trial_task import Task
from rigl_compress.experiments.trials import Trial
from rigl_compress.pipeline.train.losses import DivergedError
from rigl_compress.pipeline.train.progress import Listener, Progress
from rigl_compress.pipeline.workspace import Run

pytest.importorskip("optuna")
EPOCHS = 4
FACTS = {"recipe": "r", "method": "rigl", "seed": 0, "sparsity": 0.9, "seconds": 1.0, "data": "none", "metric": "error"}


def error_of(trial: Trial) -> float:
    """The closer to 0.1, the better."""
    return 100 * abs(trial.recipe.learning_rate.peak - 0.1)


@dataclass
class Pretence:
    """Work that trains nothing: the error is known from the setting in every epoch."""

    diverges: float = 10.0  # peaks above
    fails: float = 10.0

    def __call__(self, trial: Trial, listener: Listener, /) -> dict[str, Any]:
        error, peak = error_of(trial), trial.recipe.learning_rate.peak
        if peak > self.fails:
            raise ValueError("no such thing")
        if peak > self.diverges:
            raise DivergedError("training diverged: the loss is nan")
        for epoch in range(1, EPOCHS + 1):
            listener(Progress(10 * epoch, 10 * EPOCHS, epoch, EPOCHS, 0.5, value=error, best=error))
        if not trial.run.recipe_file.exists():
            Run.create(trial.path, trial.recipe)
        trial.run.write_result({"final_error": error, "best_error": error, **FACTS})
        return trial.run.result()

    def done(self, trial: Trial, /) -> bool:
        return False


Planner = Callable[..., SearchPlan]


@pytest.fixture
def plan(tmp_path: Path) -> Planner:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")

    def make(
        *space: str, trials: int = 8, overrides: tuple[str, ...] = ("data.holdout=60",), **more: Any
    ) -> SearchPlan:
        space = space or ("peak=0.001:0.2",)
        return SearchPlan(str(tmp_path / "tiny.toml"), overrides, parse_space(space), trials, **more)

    return make


def settings(outcomes: list[Outcome]) -> dict[str, tuple[str, ...]]:
    return {each.trial.row.label: each.trial.row.set for each in outcomes}


def run(plan: SearchPlan, out: Path, work: Any = None, listeners: Listeners | None = None) -> list[Outcome]:
    return run_all([], work or Pretence(), 1, listeners or Listeners(), OptunaSearch(plan, out))


@pytest.mark.usefixtures("in_threads")
def test_trials_that_fall_behind_are_given_up(plan: Planner, tmp_path: Path) -> None:
    outcomes = run(plan(trials=12), tmp_path / "out")
    assert [each.trial.row.label.partition(",")[0] for each in outcomes] == [f"trial {n}" for n in range(12)]
    pruned = [each for each in outcomes if each.pruned]
    complete = [each for each in outcomes if each.result is not None]
    assert len(pruned) + len(complete) == 12
    assert complete
    assert pruned
    assert min(map(error_of, (each.trial for each in outcomes))) == error_of(min(complete, key=_error).trial)
    assert pruned[0].pruned == f"after epoch 1 of 4, error {error_of(pruned[0].trial):.2f} %"
    assert str(pruned[0]) == f"{pruned[0].trial.name}: pruned {pruned[0].pruned}"


def _error(outcome: Outcome) -> float:
    return float((outcome.result or {})["final_error"])


@pytest.mark.usefixtures("in_threads")
def test_nothing_is_given_up_before_min_epochs(plan: Planner, tmp_path: Path) -> None:
    outcomes = run(plan(trials=12, min_epochs=3), tmp_path / "out")
    assert {each.pruned.partition(",")[0] for each in outcomes} == {"", "after epoch 3 of 4"}
    never = run(plan(trials=6, min_epochs=EPOCHS), tmp_path / "never")
    assert not any(each.pruned for each in never)  # the last epoch is a result, not a reason to give up


@pytest.mark.usefixtures("in_threads")
def test_epochs_that_measure_nothing_are_not_compared(plan: Planner, tmp_path: Path) -> None:
    overrides = ("data.holdout=60", "train.evaluate_every=2")
    outcomes = run(plan(trials=12, overrides=overrides), tmp_path / "out")
    assert {each.pruned.partition(",")[0] for each in outcomes} == {"", "after epoch 2 of 4"}


class StoppedError(Exception):
    """In the place of Ctrl-C."""


def stop_after(count: int) -> Listeners:
    """Stop in the first epoch of a trial, after so many trials have ended."""
    ended: list[Outcome] = []

    def progressed(trial: Trial, progress: Progress) -> None:
        if len(ended) == count:
            raise StoppedError

    return Listeners(progressed=progressed, finished=ended.append)


@pytest.mark.usefixtures("in_threads")
def test_an_interrupted_search_goes_on_as_if_it_never_stopped(plan: Planner, tmp_path: Path) -> None:
    whole = run(plan(trials=14), tmp_path / "whole")
    for stop in (0, 3, 11):
        with pytest.raises(StoppedError):
            run(plan(trials=14), tmp_path / "cut", listeners=stop_after(stop))
    told: list[str] = []
    cut = run(plan(trials=14), tmp_path / "cut", listeners=Listeners(finished=lambda each: told.append(str(each))))
    assert settings(cut) == settings(whole)
    assert [each.pruned for each in cut] == [each.pruned for each in whole]
    assert [each.result for each in cut] == [each.result for each in whole]
    assert len(told) == 14  # what ended before is listed again
    assert len(settings(whole)) == len({each[-1] for each in settings(whole).values()})  # nothing is drawn twice


@pytest.mark.usefixtures("in_threads")
def test_more_trials_extend_a_search(plan: Planner, tmp_path: Path) -> None:
    few = settings(run(plan(trials=3), tmp_path / "out"))
    more = settings(run(plan(trials=6), tmp_path / "out"))
    assert few.items() <= more.items()
    assert len(more) == 6


@pytest.mark.usefixtures("in_threads")
def test_divergence_counts_as_given_up_and_failures_are_listed(plan: Planner, tmp_path: Path) -> None:
    space = plan("peak=0.01:4", trials=8)
    for _ in range(2):  # a resumed search lists the same
        outcomes = run(space, tmp_path / "out", Pretence(diverges=1.0, fails=3.0))
        for each in outcomes:
            peak = each.trial.recipe.learning_rate.peak
            assert bool(each.failure) == (peak > 3)
            if 1 < peak <= 3:
                assert each.pruned == "training diverged: the loss is nan"
        assert "ValueError: no such thing" in [each.failure for each in outcomes]


@pytest.mark.usefixtures("in_threads")
def test_settings_that_a_recipe_refuses_together_are_listed(plan: Planner, tmp_path: Path) -> None:
    space = plan("sparsity.begin=0,5", "begin_share=0.0,0.1", trials=8)
    for _ in range(2):
        outcomes = run(space, tmp_path / "out")
        refused = [
            each for each in outcomes if {"sparsity.begin=5", "sparsity.begin_share=0.1"} <= {*each.trial.row.set}
        ]
        assert refused == [each for each in outcomes if each.failure]
        assert refused
        assert "begin_share is 0.1 and begin is 5, expected one of them" in refused[0].failure


@pytest.mark.usefixtures("in_threads")
def test_another_search_in_the_folder(plan: Planner, tmp_path: Path) -> None:
    run(plan(trials=1), tmp_path / "out")
    for other in (plan("peak=0.001:0.3"), plan(overrides=("data.holdout=50",))):
        with pytest.raises(InputError, match="holds a search with another recipe or space"):
            OptunaSearch(other, tmp_path / "out")


def test_a_damaged_journal(plan: Planner, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JOURNAL).write_text("{}\nnothing\n", encoding="utf-8")
    with pytest.raises(InputError, match="is no journal of a search"):
        OptunaSearch(plan(), tmp_path / "out")


def test_the_test_set_is_never_tuned_on_in_silence(plan: Planner) -> None:
    with pytest.raises(InputError, match=r"would choose settings by the test set, data\.holdout is 0: hold out"):
        plan(overrides=())
    assert plan(overrides=(), test_set=True).compared_by == "the test set"
    assert plan().compared_by == "the last 60 training samples, held out"


def test_values_outside_of_the_recipe_are_found_first(plan: Planner) -> None:
    for space, message in {
        "sparsity.sparsity=0.5:1.5": "sparsity",
        "method=rigl,rigel": "did you mean",
        "train.nothing=1:2": "train.nothing",
    }.items():
        with pytest.raises(InputError) as caught:
            plan(space)
        assert message in str(caught.value)


@pytest.mark.usefixtures("in_threads")
def test_the_results_file(plan: Planner, tmp_path: Path, data_dir: Path) -> None:
    chosen = plan("method=set,static", "peak=log:0.01:0.3", trials=3)
    result = run_search(chosen, tmp_path / "out", Task("cpu", data_dir, train_only=True), 1, Listeners())
    loaded = ExperimentResult.load(tmp_path / "out")
    assert loaded.to_json() == result.to_json()
    assert (tmp_path / "out" / RESULTS).exists()
    assert loaded.search is not None
    assert loaded.search["compared_by"] == "the last 60 training samples, held out"
    best = result.rows[0]
    assert best.results[0]["data"].endswith("tested on the last 60 training samples, held out")
    assert best.results[0]["final_error"] == min(each["final_error"] for row in result.rows for each in row.results)
    compared, command = search_remarks(chosen, result)
    assert "the last 60 training samples, held out" in compared
    assert f"--set {best.row.set[1]} --set {best.row.set[2]} --set data.holdout=0" in command
    assert "holdout=60" not in command


def test_the_command_in_real_processes(cli: Cli, tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
    words = ["sweep", "--recipe", tmp_path / "tiny.toml", "--data-dir", data_dir, "--search", "optuna", "--trials", 3]
    words += ["--space", "peak=log:1e-5:1e-1", "-o", tmp_path / "out", "--jobs", 1, "--set", "data.holdout=60"]
    dry = cli(*words, "--dry-run")
    assert (dry.code, dry.out.strip()) == (0, f"{tmp_path / 'out'}: 3 trials to be chosen")
    assert not (tmp_path / "out").exists()
    done = cli(*words)
    assert done.code == 0, done.err
    assert "3 trials in" in done.err
    assert "compared by the last 60 training samples, held out" in done.err
    assert "pruned" in done.out
    assert "Train the best with all data: rigl-compress train" in done.out
    again = cli(*words, "--json")
    assert again.code == 0
    assert ExperimentResult.load(tmp_path / "out").search is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--grid", "method=rigl,set"), "--grid is for grids, not for --search"),
        (("--seeds", "2"), "--seeds is for grids, not for --search"),
        (("--engine", "ray"), "a search on Ray without --jobs"),
        (("--engine", "dask"), "unknown engine 'dask'"),
        (("--set", "data.holdout=0"), "would choose settings by the test set"),
    ],
)
def test_options_that_do_not_fit(cli: Cli, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
    search = ("--search", "optuna", "--space", "peak=log:1e-3:1e-1", "--set", "data.holdout=60")
    done = cli("sweep", "--recipe", tmp_path / "tiny.toml", *search, *words, "-o", tmp_path / "out")
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "out").exists()


def test_a_space_without_a_search_and_a_search_of_a_comparison(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", "--recipe", "mnist-rigl", "--space", "peak=1:2", "-o", tmp_path / "out")
    assert (done.code, "--space without --search: add --search optuna" in done.err) == (2, True)
    done = cli("sweep", "--recipe", "mnist-structured", "--search", "optuna", "--space", "peak=1:2")
    assert (done.code, "--search is for plain recipes, mnist-structured is a comparison" in done.err) == (2, True)


def test_a_missing_package_is_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = ("--search", "optuna", "--space", "peak=1:2", "--set", "data.holdout=60", "-o", tmp_path / "out")
    done = cli("sweep", "--recipe", "mnist-rigl", *words)
    assert done.code == 2
    assert "--search optuna needs the package optuna: install it with `pip install rigl-compress[optuna]`" in done.err


@pytest.mark.slow
def test_a_search_on_ray(plan: Planner, tmp_path: Path, data_dir: Path) -> None:
    pytest.importorskip("ray")
    task = Task("cpu", data_dir, train_only=True, engine="ray")
    result = run_search(plan("peak=log:1e-5:1e-1", trials=3), tmp_path / "out", task, 1, Listeners())
    assert not result.failed
    assert len(result.rows) == 3
    assert result.rows[0].results


def test_ray_passes_on_every_epoch_and_ends_what_is_given_up(plan: Planner, tmp_path: Path) -> None:
    board, search = Board(), OptunaSearch(plan(trials=2), tmp_path / "out")
    good, poor = search.next(), search.next()
    assert isinstance(good, Trial)
    assert isinstance(poor, Trial)
    for trial, error in ((good, 1.0), (poor, 50.0)):
        for iteration in (5, 10, 15, 20):
            now = Progress(iteration, 40, (iteration + 9) // 10, EPOCHS, 0.5, value=error, best=error)
            board.put(trial.key, now)
    cluster, cancelled = _Cluster.__new__(_Cluster), []
    cluster.running = {"a": good, "b": poor}
    cluster.ray = SimpleNamespace(cancel=lambda reference, force: cancelled.append((reference, force)))
    schedule = Schedule([], search=search)
    told = board.taken()
    assert [(key, now.iteration) for key, now in told] == [(each.key, n) for each in (good, poor) for n in (10, 20)]
    for key, now in told:
        cluster._report(key, now, schedule, Listeners())
    assert cancelled == [("b", True)]
    assert list(cluster.running) == ["a"]
    assert schedule.outcomes[poor.key].pruned == "after epoch 1 of 4, error 50.00 %"
    assert not board.taken()
