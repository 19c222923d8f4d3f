"""The spec of an experiment: rows × seeds. Each row is a recipe with changes, and can start from another row's runs."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from re import sub
from typing import Any, Literal

from rigl_compress.core.artifacts import read_small_text
from rigl_compress.core.dataclass_io import parse
from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.core.trust import from_file
from rigl_compress.experiments.published_flops.structured_pruning import PRINTED
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.pipeline.recipe import check_name, load_recipe, shipped_files, shipped_recipes


@dataclass(frozen=True)
class Row:
    """A recipe with changes (`set`), trained with every seed. `after`: the row whose runs it starts from."""

    label: str
    recipe: str
    set: tuple[str, ...] = ()
    after: str = ""
    paper: str = ""  # the row of the paper's table that is printed below it
    section: str = ""
    values: str = "fp32"  # precision of the values in the sparse and compact files
    seeds: int | None = None  # None: as many as the experiment has

    @property
    def folder(self) -> str:
        """The label as a folder name.

        >>> Row("RigL+, 2×", "mnist-rigl").folder
        'RigL+,_2×'
        """
        return sub(r"[^\w.=,+×-]", "_", self.label).strip(".")


@dataclass(frozen=True)
class Experiment:
    """Rows of recipes, each trained with several seeds."""

    name: str
    row: tuple[Row, ...]
    format: Literal[1] = 1
    about: str = ""
    seeds: int = 1

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}, expected 1 or more")
        if not self.row:
            raise InputError("no row, expected one or more: add [[row]] with a label and a recipe")
        labels = [row.label for row in self.row]
        folders: dict[str, str] = {}
        for row in self.row:
            _check_row(row, labels)
            if row.after and self.seeds_of(row) > self.seeds_of(self.find(row.after)):
                raise InputError(
                    f"row {row.label!r} has more seeds than {row.after!r}, which it starts from: use as many or fewer"
                )
            if (other := folders.setdefault(row.folder.casefold(), row.label)) != row.label or labels.count(other) > 1:
                raise InputError(f"rows {other!r} and {row.label!r} have the same label or folder: rename one of them")
        self.ordered()

    def seeds_of(self, row: Row) -> int:
        """Return the number of seeds that a row is trained with.

        >>> Experiment("c", (row := Row("a", "x", seeds=2),), seeds=5).seeds_of(row)
        2
        """
        return self.seeds if row.seeds is None else min(row.seeds, self.seeds)

    def find(self, label: str) -> Row:
        """Return the row with a label."""
        return next(row for row in self.row if row.label == label)

    def ordered(self) -> list[Row]:
        """Return the rows sorted so that each follows the row it starts from.

        >>> [row.label for row in Experiment("c", (Row("b", "x", after="a"), Row("a", "x"))).ordered()]
        ['a', 'b']
        """
        found: list[Row] = []
        for row in self.row:
            found += [each for each in reversed(self.ancestry(row)) if each not in found]
        return found

    def ancestry(self, row: Row) -> list[Row]:
        """Return a row, the row it starts from, the row that one starts from, and so on."""
        found = [row]
        while found[-1].after:
            before = self.find(found[-1].after)
            if before in found:
                cycle = " → ".join(each.label for each in (*found, before))
                raise InputError(f"rows start from each other in a cycle ({cycle}): remove one `after`")
            found.append(before)
        return found

    def with_seeds(self, seeds: int | None) -> "Experiment":
        """Return a copy with this number of seeds for every row; None changes nothing.

        >>> few = Experiment("c", (Row("a", "x", seeds=1),), seeds=5)
        >>> few.with_seeds(3).seeds_of(few.with_seeds(3).row[0])
        3
        """
        if seeds is None:
            return self
        return replace(self, seeds=seeds, row=tuple(replace(row, seeds=None) for row in self.row))

    def with_overrides(self, overrides: Sequence[str]) -> "Experiment":
        """Return a copy with further changes to the recipe of every row.

        >>> Experiment("c", (Row("a", "x", ("seed=1",)),)).with_overrides(["train.epochs=2"]).row[0].set
        ('seed=1', 'train.epochs=2')
        """
        return replace(self, row=tuple(replace(row, set=(*row.set, *overrides)) for row in self.row))

    def only(self, labels: Iterable[str]) -> "Experiment":
        """Return a copy with the rows of these labels and those they start from; without labels, all rows."""
        kept: list[Row] = []
        for label in labels:
            if label not in (known := [row.label for row in self.row]):
                raise InputError(f"no row {label!r}: {did_you_mean(label, known)}")
            kept += self.ancestry(self.find(label))
        return replace(self, row=tuple(row for row in self.row if row in kept)) if kept else self


def _check_row(row: Row, labels: Sequence[str]) -> None:
    if row.seeds is not None and row.seeds < 1:
        raise InputError(f"row {row.label!r} has {row.seeds} seeds, expected 1 or more")
    if not row.label.isprintable():
        raise InputError(f"a row has the label {row.label!r}, expected one line of printable characters: rename it")
    if not row.folder:
        raise InputError(f"a row has the label {row.label!r}, which leaves no folder name: use letters")
    if row.after and row.after not in labels:
        raise InputError(
            f"row {row.label!r} is after {row.after!r}, expected the label of a row: {did_you_mean(row.after, labels)}"
        )
    if row.paper and row.paper not in PRINTED:
        raise InputError(
            f"row {row.label!r} has paper = {row.paper!r}, expected a row of the paper's table: "
            f"{did_you_mean(row.paper, PRINTED)}"
        )
    _ = VALUES[row.values]


def parse_comparison(text: str, where: str) -> Experiment:
    """Parse a comparison file.

    >>> parse_comparison('name = "c"\\n[[row]]\\nlabel = "RigL"\\nrecipe = "mnist-rigl"', "c.toml").row[0].label
    'RigL'
    """
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}") from None
    try:
        return parse(Experiment, from_file(content, where))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def shipped_comparisons() -> dict[str, Path]:
    """Return the comparisons that ship with the package, by name."""
    plain = shipped_recipes()
    return {name: path for name, path in shipped_files().items() if name not in plain}


def load_comparison(source: str) -> Experiment | None:
    """Load a comparison by the name of a shipped one or by its path; None if it is a plain recipe."""
    path = shipped_files().get(source, Path(source))
    if not path.is_file():
        known = {**shipped_comparisons(), **shipped_recipes()}
        raise InputError(f"no recipe {source!r}: pass the path of a TOML file or a name; {did_you_mean(source, known)}")
    try:
        text = read_small_text(path)
        if "row" not in tomllib.loads(text):
            return None
    except InputError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {source}: {error}; expected a text file in TOML: check the path") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid TOML: {error}") from None
    found = parse_comparison(text, source)
    experiment = replace(found, row=tuple(replace(row, recipe=_beside(path, row.recipe)) for row in found.row))
    for row in experiment.row:
        _check_recipe(row, source)
    return experiment


def _beside(path: Path, recipe: str) -> str:
    """Return a recipe as `load_recipe` takes it: a file in the folder of the comparison goes first."""
    beside = path.parent / recipe
    return str(beside) if recipe not in shipped_recipes() and beside.is_file() else recipe


def _check_recipe(row: Row, where: str) -> None:
    try:
        load_recipe(row.recipe, row.set)
    except InputError as error:
        raise InputError(f"{where}: row {row.label!r}: {error}") from None
