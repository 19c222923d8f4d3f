"""The options of `sweep` that search a space of settings instead of a grid."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rigl_compress.cli import _options as options
from rigl_compress.cli._experiments import ExperimentOptions
from rigl_compress.cli._option_types import Name, OneOf, recipe_settings
from rigl_compress.core.errors import InputError

if TYPE_CHECKING:
    from rigl_compress.experiments.results import ExperimentResult
    from rigl_compress.experiments.search_plan import SearchPlan

search_options = options.all_of(
    options.option(
        "--search",
        type=OneOf("search", ("optuna",)),
        help="Search a space of settings instead of a grid (needs the extra optuna).",
    ),
    options.option(
        "--space",
        multiple=True,
        type=Name(recipe_settings, "KEY=VALUES"),
        help="Values to search: LOW:HIGH, LOW:HIGH:STEP, log:LOW:HIGH or A,B,C.",
    ),
    options.option(
        "--trials", type=options.COUNT, default=20, show_default=True, metavar="N", help="Trials of a search."
    ),
    options.option(
        "--min-epochs",
        type=options.COUNT,
        default=1,
        show_default=True,
        metavar="N",
        help="Epochs before a search can give up a trial.",
    ),
    options.option("--on-test-set", is_flag=True, help="Let a search compare trials by the test set."),
)


@dataclass(frozen=True)
class SearchOptions:
    """Which space to search, and how."""

    search: str | None
    space: tuple[str, ...]
    trials: int
    min_epochs: int
    on_test_set: bool

    def plan(self, chosen: ExperimentOptions) -> "SearchPlan":
        """Read the recipe and the space."""
        from rigl_compress.experiments.search_plan import SearchPlan
        from rigl_compress.experiments.search_space import parse_space

        if chosen.grid or (chosen.seeds or 1) > 1:
            found = "--grid" if chosen.grid else "--seeds"
            raise InputError(f"{found} is for grids, not for --search, which tries each setting once: leave it out")
        changes = options.changes(chosen.overrides, chosen.model, chosen.data)
        source, space = options.needs_recipe(chosen.recipe), parse_space(self.space)
        return SearchPlan(source, tuple(changes), space, self.trials, self.min_epochs, self.on_test_set)

    def run(self, plan: "SearchPlan", folder: Path, chosen: ExperimentOptions) -> "ExperimentResult | None":
        """Run a search and show its progress; a dry run prints what is left to do, and returns None."""
        from rigl_compress.cli import _render
        from rigl_compress.experiments.optuna_search import states_of
        from rigl_compress.experiments.run_search import run_search
        from rigl_compress.experiments.trial_task import Task

        if chosen.dry_run:
            _render.runs(states_of(plan, folder), as_json=chosen.as_json)
            return None
        jobs = min(self.trials, _jobs(chosen))
        _render.note(f"{self.trials} trials in {folder}, {jobs} at a time, compared by {plan.compared_by}")
        with _render.watching(self.trials) as listeners:
            task = Task(chosen.device, chosen.data_dir, train_only=True, engine=chosen.engine)
            return run_search(plan, folder, task, jobs, listeners)


def _jobs(chosen: ExperimentOptions) -> int:
    from rigl_compress.experiments.trial_task import default_jobs

    chosen.check_engine()
    if chosen.jobs is None and chosen.engine != "local":
        raise InputError("a search on Ray without --jobs, the number of trials at a time: add --jobs N")
    return chosen.jobs or default_jobs(chosen.device)
