"""Run an experiment: its trials, the benchmark of their networks, and the results file."""

from collections.abc import Sequence

from rigl_compress.core.artifacts import write_json
from rigl_compress.core.folder_lock import locked
from rigl_compress.experiments.ray_engine import run_on_ray
from rigl_compress.experiments.results import RESULTS, ExperimentResult, rows_of
from rigl_compress.experiments.scheduler import Listeners, run_all
from rigl_compress.experiments.spec import Experiment
from rigl_compress.experiments.trial_latency import latencies
from rigl_compress.experiments.trial_task import Task
from rigl_compress.experiments.trials import Trial


def run_experiment(
    experiment: Experiment, trials: Sequence[Trial], task: Task, jobs: int, listeners: Listeners
) -> ExperimentResult:
    """Run what is left of the trials, benchmark their networks unless they are only trained, and write the results."""
    out = trials[0].path.parents[1]
    order = [row.label for row in experiment.ordered()]
    with locked(out):
        run = run_all if task.engine == "local" else run_on_ray
        rows = rows_of(experiment, run(trials, task, jobs, listeners))
        by_dependency = sorted(rows, key=lambda each: order.index(each.row.label))
        timed = {} if task.train_only else latencies(by_dependency, out, listeners.benched)
        result = ExperimentResult(experiment, rows, timed)
        write_json(out / RESULTS, result.to_json())
    return result
