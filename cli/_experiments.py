"""What `sweep` and `compare` share: the options of an experiment, and its run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import Name, fixed
from rigl_compress.core.errors import InputError

if TYPE_CHECKING:
    from rigl_compress.experiments.results import ExperimentResult
    from rigl_compress.experiments.spec import Experiment

experiment_options = options.all_of(
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
    options.option(
        "--engine",
        default="local",
        show_default=True,
        type=Name(fixed("local", "ray", "ray:auto"), "local|ray[:ADDRESS]"),
        help="Where to run: processes of this machine, or a Ray cluster (needs the extra ray).",
    ),
    options.data_dir,
    options.device,
    options.dry_run,
    options.trust_code,
    options.as_json,
)


@dataclass(frozen=True)
class ExperimentOptions:
    """What to train, how often, and where and how."""

    recipe: str | None
    model: str | None
    data: str | None
    grid: tuple[str, ...]
    seeds: int | None
    overrides: tuple[str, ...]
    jobs: int | None
    engine: str
    data_dir: Path | None
    device: str
    dry_run: bool
    as_json: bool

    def load(self) -> "Experiment":
        """Read the rows of the experiment, or make them of the grid."""
        from rigl_compress.experiments.grid import load_experiment

        changes = options.changes(self.overrides, self.model, self.data)
        return load_experiment(options.needs_recipe(self.recipe), self.grid, changes)

    def run(self, experiment: "Experiment", folder: Path, *, train_only: bool) -> "ExperimentResult | None":
        """Run an experiment and show its progress; a dry run prints what is left to do, and returns None."""
        from rigl_compress.cli import _render
        from rigl_compress.experiments.run_experiment import run_experiment
        from rigl_compress.experiments.trial_task import Task, default_jobs
        from rigl_compress.experiments.trials import trials_of

        trials = trials_of(experiment, folder)
        if self.dry_run:
            _render.runs({trial.path: trial.state for trial in trials}, as_json=self.as_json)
            return None
        self.check_engine()
        jobs = self.jobs or (default_jobs(self.device) if self.engine == "local" else len(trials))
        _render.note(f"{len(trials)} run{'s' if len(trials) > 1 else ''} in {folder}, {jobs} at a time")
        with _render.watching(len(trials)) as listeners:
            task = Task(self.device, self.data_dir, train_only, self.engine)
            return run_experiment(experiment, trials, task, jobs, listeners)

    def check_engine(self) -> None:
        """Raise for an engine that is not known."""
        if self.engine != "local" and self.engine.partition(":")[0] != "ray":
            raise InputError(f"unknown engine {self.engine!r}: use local, ray or ray:ADDRESS")
