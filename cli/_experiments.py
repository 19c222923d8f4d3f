"""What `sweep` and `compare` share: the options of an experiment, and its run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rigl_compress.cli import _options as options

if TYPE_CHECKING:
    from rigl_compress.experiments.results import ExperimentResult
    from rigl_compress.experiments.spec import Experiment
    from rigl_compress.experiments.trial_task import Task

F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS = (
    options.recipe,
    options.model,
    options.data,
    options.grid,
    options.option(
        "--seeds",
        type=options.COUNT,
        metavar="N",
        show_default="the comparison's, or 1",
        help="Number of seeds per row: 0 to N-1.",
    ),
    options.overrides,
    options.option(
        "--jobs",
        type=options.COUNT,
        metavar="N",
        show_default="one per core, 1 on a GPU",
        help="Number of parallel runs, one thread each.",
    ),
    options.data_dir,
    options.device,
    options.dry_run,
    options.trust_code,
    options.as_json,
)


def experiment_options(command: F) -> F:
    """Add the options of an experiment to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@dataclass(frozen=True)
class Plan:
    """An experiment, the folder of its runs, and how they run."""

    experiment: "Experiment"
    folder: Path
    task: "Task"
    jobs: int | None


def run(plan: Plan, *, dry_run: bool, as_json: bool) -> "ExperimentResult | None":
    """Run an experiment and show its progress; a dry run prints what is left to do, and returns None."""
    from rigl_compress.cli import _render
    from rigl_compress.experiments.run_experiment import run_experiment
    from rigl_compress.experiments.trial_task import default_jobs
    from rigl_compress.experiments.trials import trials_of

    trials = trials_of(plan.experiment, plan.folder)
    if dry_run:
        _render.runs({trial.path: trial.state for trial in trials}, as_json=as_json)
        return None
    jobs = plan.jobs or default_jobs(plan.task.device)
    _render.note(f"{len(trials)} run{'s' if len(trials) > 1 else ''} in {plan.folder}, {jobs} at a time")
    with _render.watching(len(trials)) as listeners:
        return run_experiment(plan.experiment, trials, plan.task, jobs, listeners)
