"""The trials of an experiment: a row with a seed, its recipe and its run folder."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from rigl_compress.core.errors import InputError
from rigl_compress.core.trust import FromFile
from rigl_compress.experiments.spec import Experiment, Row
from rigl_compress.pipeline.recipe import Recipe, load_recipe
from rigl_compress.pipeline.train.recipe_check import check_names
from rigl_compress.pipeline.workspace import Run


@dataclass(frozen=True)
class Trial:
    """One run of an experiment."""

    row: Row
    seed: int
    recipe: Recipe
    path: Path

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.row.label}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, int]:
        """Label and seed, unique in an experiment."""
        return self.row.label, self.seed

    @property
    def needs(self) -> tuple[str, int] | None:
        """The key of the trial that it starts from."""
        return (self.row.after, self.seed) if self.row.after else None

    @property
    def run(self) -> Run:
        """The run folder."""
        return Run(self.path)

    @property
    def trained(self) -> bool:
        """Whether training has finished."""
        return self.run.result_file.exists() and self.run.model_file.exists()

    @property
    def state(self) -> str:
        """What is left to train."""
        if self.trained:
            return "trained"
        return "resumes from its checkpoint" if self.run.checkpoint_file.exists() else "to be trained"


def trials_of(experiment: Experiment, out: Path) -> list[Trial]:
    """List the trials seed by seed, so that an experiment cut short has seen all rows.

    An invalid recipe, or a folder that holds another run, is an error here, before the first trial starts.
    """
    rows = experiment.ordered()
    found = [
        Trial(row, seed, _recipe(row, seed, out), folder_of(out, row, seed))
        for seed in range(experiment.seeds)
        for row in rows
        if seed < experiment.seeds_of(row)
    ]
    for trial in found:
        _check_folder(trial)
    return found


def folder_of(out: Path, row: Row, seed: int) -> Path:
    """Return the run folder of a row with a seed.

    >>> folder_of(Path("runs/compare-mnist"), Row("RigL+", "mnist-rigl-plus"), 2).as_posix()
    'runs/compare-mnist/RigL+/seed=2'
    """
    return out / row.folder / f"seed={seed}"


def _recipe(row: Row, seed: int, out: Path) -> Recipe:
    try:
        recipe = load_recipe(row.recipe, _overrides(row, seed, out))
        check_names(recipe)
        return recipe
    except InputError as error:
        raise InputError(f"row {row.label!r}: {error}") from None


def _overrides(row: Row, seed: int, out: Path) -> list[str]:
    """Return the changes to a row's recipe. `{seed}` lets a row start from the runs of another experiment.

    >>> _overrides(Row("a", "mnist-rigl", ("start.run=runs/first/seed={seed}",)), 1, Path("out"))
    ['start.run=runs/first/seed=1', 'seed=1']
    """
    before = str(folder_of(out, replace(row, label=row.after), seed))
    start = [f"start.run={json.dumps(before, ensure_ascii=False)}"] if row.after else []
    return [*(_with_seed(setting, seed) for setting in row.set), *start, f"seed={seed}"]


def _with_seed(setting: str, seed: int) -> str:
    """Fill in the seed; a setting from a file stays marked as such."""
    filled = setting.replace("{seed}", str(seed))
    return FromFile(filled, setting.file) if isinstance(setting, FromFile) else filled


def _check_folder(trial: Trial) -> None:
    if trial.run.recipe_file.exists() and not same_training(trial.run.recipe(), trial.recipe):
        raise InputError(
            f"{trial.path} holds a run of another recipe: choose another folder with --output, or remove it"
        )


def same_training(one: Recipe, other: Recipe) -> bool:
    """Check whether two recipes train alike: `about`, and how a path is written, make no difference."""
    return _normalized(one) == _normalized(other)


def _normalized(recipe: Recipe) -> Recipe:
    start = recipe.start
    if start is not None and start.run is not None:
        start = replace(start, run=str(Path(start.run).resolve()))
    if start is not None and start.file is not None:
        start = replace(start, weights=str(start.file.resolve()))
    return replace(recipe, about="", start=start)
