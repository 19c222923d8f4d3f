"""Run a search: trials one after another as it chooses them, and the same results file as of a sweep."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from rigl_compress.core.artifacts import write_json
from rigl_compress.core.folder_lock import locked
from rigl_compress.experiments.optuna_search import OptunaSearch
from rigl_compress.experiments.ray_engine import run_on_ray
from rigl_compress.experiments.results import RESULTS, ExperimentResult, rows_of
from rigl_compress.experiments.scheduler import Listeners, run_all
from rigl_compress.experiments.search_plan import SearchPlan
from rigl_compress.experiments.spec import Experiment
from rigl_compress.experiments.trial_source import Outcome
from rigl_compress.experiments.trial_task import Task
from rigl_compress.pipeline.metrics import metric_of


def run_search(plan: SearchPlan, out: Path, task: Task, jobs: int, listeners: Listeners) -> ExperimentResult:
    """Run what is left of a search, and write its results: the best trial first, then those given up or failed."""
    with locked(out):
        search = OptunaSearch(plan, out)
        run = run_all if task.engine == "local" else run_on_ray
        outcomes = sorted(run([], task, jobs, listeners, search), key=_rank)
        experiment = Experiment(plan.name, tuple(outcome.trial.row for outcome in outcomes))
        result = ExperimentResult(experiment, rows_of(experiment, outcomes), search=search.record)
        write_json(out / RESULTS, result.to_json())
    return result


def _rank(outcome: Outcome) -> tuple[int, float]:
    if outcome.result is None:
        return 2 if outcome.failure else 1, 0.0
    return 0, metric_of(outcome.result).final_and_best(outcome.result)[0]


def search_remarks(plan: SearchPlan, result: ExperimentResult) -> Sequence[str]:
    """Return the lines below the table: by which data trials were compared, and how to train with the best settings."""
    compared = f"The metric is that of {plan.compared_by}: trials were chosen by it, so the best figure is optimistic."
    best = result.rows[0]
    if not best.results:
        return compared, "No trial was trained to its end."
    settings = [change for change in best.row.set if change not in plan.overrides]
    words = " ".join(
        f"--set {quote(change)}" for change in (*plan.overrides, *settings) if "data.holdout=" not in change
    )
    whole = " --set data.holdout=0" if plan.recipe.data.holdout else ""
    return compared, f"Train the best with all data: rigl-compress train --recipe {plan.source} {words}{whole}"
