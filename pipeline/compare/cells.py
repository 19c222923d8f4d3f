"""The runs of a comparison: a row with a seed, its recipe and its folder, and whether it is done already."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.compare.comparison import Comparison, Row
from rigl_compress.pipeline.recipe import Recipe, load_recipe
from rigl_compress.pipeline.train.check import check_names
from rigl_compress.pipeline.workspace import Run


@dataclass(frozen=True)
class Cell:
    """A run of a comparison."""

    row: Row
    seed: int
    recipe: Recipe
    path: Path

    @property
    def name(self) -> str:
        """What it is called while it runs."""
        return f"{self.row.label}, seed {self.seed}"

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the others."""
        return self.row.label, self.seed

    @property
    def needs(self) -> tuple[str, int] | None:
        """The key of the run that it starts from."""
        return (self.row.after, self.seed) if self.row.after else None

    @property
    def run(self) -> Run:
        """Its run folder."""
        return Run(self.path)

    @property
    def trained(self) -> bool:
        """Whether it was trained to the end."""
        return self.run.result_file.exists() and self.run.model_file.exists()

    @property
    def state(self) -> str:
        """Say what there is to do."""
        if self.trained:
            return "trained"
        return "goes on from its checkpoint" if self.run.checkpoint_file.exists() else "to be trained"


def cells_of(comparison: Comparison, out: Path, changes: Sequence[str] = ()) -> list[Cell]:
    """List the runs, seed by seed, rows before those that start from them.

    What is wrong with any recipe, or in the way of any run, is an error here, before the first of them begins.
    """
    rows = comparison.ordered()
    found = [
        Cell(row, seed, _recipe(row, seed, out, changes), folder_of(out, row, seed))
        for seed in range(comparison.seeds)
        for row in rows
        if seed < comparison.seeds_of(row)
    ]
    for cell in found:
        _check_folder(cell)
    return found


def folder_of(out: Path, row: Row, seed: int) -> Path:
    """Give the folder of a run.

    >>> folder_of(Path("runs/compare-mnist"), Row("RigL+", "mnist-rigl-plus"), 2).as_posix()
    'runs/compare-mnist/RigL+/seed=2'
    """
    return out / row.folder / f"seed={seed}"


def _recipe(row: Row, seed: int, out: Path, changes: Sequence[str]) -> Recipe:
    before = folder_of(out, replace(row, label=row.after), seed)
    start = [f"start.run={json.dumps(str(before), ensure_ascii=False)}"] if row.after else []
    try:
        recipe = load_recipe(row.recipe, [*row.set, *changes, *start, f"seed={seed}"])
        check_names(recipe)
        return recipe
    except InputError as error:
        raise InputError(f"row {row.label!r}: {error}") from None


def _check_folder(cell: Cell) -> None:
    if cell.run.recipe_file.exists() and not same_training(cell.run.recipe(), cell.recipe):
        raise InputError(f"{cell.path} holds a run of another recipe: choose another folder with --out, or remove it")


def same_training(one: Recipe, other: Recipe) -> bool:
    """Say whether two recipes train the same: what is said about them, and how a path is written, is no difference."""
    return _essence(one) == _essence(other)


def _essence(recipe: Recipe) -> Recipe:
    start = recipe.start and replace(recipe.start, run=str(Path(recipe.start.run).resolve()))
    return replace(recipe, about="", start=start)
