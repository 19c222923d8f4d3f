"""The plan of a search: a recipe, the space of its settings, and how trials are compared."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.search_space import Axis
from rigl_compress.experiments.spec import Experiment, Row, load_comparison
from rigl_compress.experiments.trials import Trial, folder_of, trials_of
from rigl_compress.pipeline.recipe import Recipe, load_recipe
from rigl_compress.pipeline.train.recipe_check import check_names


@dataclass(frozen=True)
class SearchPlan:
    """Which settings are tried, how many trials there are, and which data compares them."""

    source: str  # the recipe, by name or path
    overrides: tuple[str, ...]
    space: tuple[Axis, ...]
    trials: int
    min_epochs: int = 1  # that every trial trains before it can be given up
    test_set: bool = False  # trials are compared by the test set, which the user asked for

    def __post_init__(self) -> None:
        if load_comparison(self.source) is not None:
            raise InputError(f"--search is for plain recipes, {self.source} is a comparison: name one of its recipes")
        for axis in self.space:  # a value that the recipe refuses is found before the first trial
            for setting in axis.ends:
                check_names(load_recipe(self.source, (*self.overrides, setting)))
        if not self.recipe.data.holdout and not self.test_set:
            raise InputError(
                "this search would choose settings by the test set, data.holdout is 0: hold out training samples with "
                "--set data.holdout=N, or add --on-test-set"
            )

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return Path(self.source).stem

    @property
    def recipe(self) -> Recipe:
        """The recipe without the settings of a trial."""
        return load_recipe(self.source, self.overrides)

    @property
    def compared_by(self) -> str:
        """The data that trials are compared by, in words."""
        held_out = self.recipe.data.holdout
        return f"the last {held_out} training samples, held out" if held_out else "the test set"

    @property
    def identity(self) -> dict[str, Any]:
        """What a search in the same folder must have in common with an earlier one: recipe and space."""
        recipe = tomllib.loads(self.recipe.to_toml()) | {"about": ""}
        return {"recipe": recipe, "space": [[axis.key, *map(repr, _values(axis))] for axis in self.space]}

    def trial(self, number: int, settings: dict[str, Any], out: Path) -> Trial:
        """Return the trial with these settings; raise if the recipe refuses them."""
        (found,) = trials_of(Experiment(self.name, (self.row(number, settings),)), out)
        return found

    def refused_trial(self, number: int, settings: dict[str, Any], out: Path) -> Trial:
        """Return a trial to list whose settings the recipe refuses together."""
        row = self.row(number, settings)
        return Trial(row, 0, self.recipe, folder_of(out, row, 0))

    def row(self, number: int, settings: dict[str, Any]) -> Row:
        """Return the row of a trial, labelled by its number and rounded settings."""
        shown = (f"{key.rpartition('.')[2]}={_short(value)}" for key, value in settings.items())
        changes = (f"{key}={value}" for key, value in settings.items())
        return Row(", ".join((f"trial {number}", *shown)), self.source, (*self.overrides, *changes))


def _values(axis: Axis) -> tuple[Any, ...]:
    return axis.choices or (axis.low, axis.high, axis.step, axis.log)


def _short(value: Any) -> str:
    """Return a value with three digits.

    >>> _short(0.0123456), _short(64), _short("rigl")
    ('0.0123', '64', 'rigl')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)
