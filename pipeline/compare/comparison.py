"""A comparison: rows of runs, each with a recipe, some of them starting from what another row trained."""

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from re import sub
from typing import Any, Literal

from rigl_compress.exporters.values import VALUES
from rigl_compress.models.artifacts import read_small_text
from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.settings import parse
from rigl_compress.models.trust import from_file
from rigl_compress.pipeline.paper.structured import PRINTED
from rigl_compress.pipeline.recipe import check_name, load_recipe, shipped_files, shipped_recipes


@dataclass(frozen=True)
class Row:
    """A row: a recipe with changes (`set`), trained with every seed. `after`: the row whose runs it starts from."""

    label: str
    recipe: str
    set: tuple[str, ...] = ()
    after: str = ""
    paper: str = ""  # the printed row of the paper that stands beside it
    section: str = ""
    values: str = "fp32"  # of the sparse and compact files
    seeds: int | None = None  # None: as many as the comparison has

    @property
    def folder(self) -> str:
        """A folder name.

        >>> Row("RigL+, 2×", "mnist-rigl").folder
        'RigL+,_2×'
        """
        return sub(r"[^\w.=,+×-]", "_", self.label).strip(".")


@dataclass(frozen=True)
class Comparison:
    """What to compare: the rows, and how many seeds of each."""

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
            raise InputError("there is no row: add [[row]] with a label and a recipe")
        labels = [row.label for row in self.row]
        folders: dict[str, str] = {}
        for row in self.row:
            _check_row(row, labels)
            if row.after and self.seeds_of(row) > self.seeds_of(self.find(row.after)):
                raise InputError(
                    f"row {row.label!r} has more seeds than {row.after!r}, which it starts from: lower them"
                )
            if (other := folders.setdefault(row.folder.casefold(), row.label)) != row.label or labels.count(other) > 1:
                raise InputError(f"rows {other!r} and {row.label!r} have the same label or folder: rename one of them")
        self.ordered()

    def seeds_of(self, row: Row) -> int:
        """Give the number of seeds that a row is trained with.

        >>> Comparison("c", (row := Row("a", "x", seeds=2),), seeds=5).seeds_of(row)
        2
        """
        return self.seeds if row.seeds is None else min(row.seeds, self.seeds)

    def find(self, label: str) -> Row:
        """Give a row by its label."""
        return next(row for row in self.row if row.label == label)

    def ordered(self) -> list[Row]:
        """Give the rows such that each stands after the one it starts from.

        >>> [row.label for row in Comparison("c", (Row("b", "x", after="a"), Row("a", "x"))).ordered()]
        ['a', 'b']
        """
        found: list[Row] = []
        for row in self.row:
            found += [each for each in reversed(self.line_of(row)) if each not in found]
        return found

    def line_of(self, row: Row) -> list[Row]:
        """Give a row, the row it starts from, the row that one starts from, and so on."""
        line = [row]
        while line[-1].after:
            before = self.find(line[-1].after)
            if before in line:
                circle = " → ".join(each.label for each in (*line, before))
                raise InputError(f"rows start from each other in a circle ({circle}): take one `after` away")
            line.append(before)
        return line

    def with_seeds(self, seeds: int | None) -> "Comparison":
        """Give the same with so many seeds of every row, if a number is asked for.

        >>> few = Comparison("c", (Row("a", "x", seeds=1),), seeds=5)
        >>> few.with_seeds(3).seeds_of(few.with_seeds(3).row[0])
        3
        """
        if seeds is None:
            return self
        return replace(self, seeds=seeds, row=tuple(replace(row, seeds=None) for row in self.row))

    def only(self, labels: Iterable[str]) -> "Comparison":
        """Keep the rows of these labels, and those that they start from."""
        kept: list[Row] = []
        for label in labels:
            if label not in (known := [row.label for row in self.row]):
                raise InputError(f"no row {label!r}: {did_you_mean(label, known)}")
            kept += self.line_of(self.find(label))
        return replace(self, row=tuple(row for row in self.row if row in kept)) if kept else self


def _check_row(row: Row, labels: Sequence[str]) -> None:
    if row.seeds is not None and row.seeds < 1:
        raise InputError(f"row {row.label!r} has {row.seeds} seeds, expected 1 or more")
    if not row.folder:
        raise InputError(f"a row has the label {row.label!r}, which gives no name for a folder: use letters")
    if row.after and row.after not in labels:
        raise InputError(
            f"row {row.label!r} is after {row.after!r}, which is no row: {did_you_mean(row.after, labels)}"
        )
    if row.paper and row.paper not in PRINTED:
        raise InputError(
            f"row {row.label!r} has paper = {row.paper!r}, which the paper does not print: "
            f"{did_you_mean(row.paper, PRINTED)}"
        )
    _ = VALUES[row.values]


def parse_comparison(text: str, where: str) -> Comparison:
    """Parse a comparison.

    >>> parse_comparison('name = "c"\\n[[row]]\\nlabel = "RigL"\\nrecipe = "mnist-rigl"', "c.toml").row[0].label
    'RigL'
    """
    try:
        content: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not valid TOML: {error}") from None
    try:
        return parse(Comparison, from_file(content, where))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def shipped_comparisons() -> dict[str, Path]:
    """The comparisons that come with the package, by name."""
    plain = shipped_recipes()
    return {name: path for name, path in shipped_files().items() if name not in plain}


def load_comparison(source: str) -> Comparison | None:
    """Load a comparison by its name or its file; None if it is a plain recipe."""
    path = shipped_files().get(source, Path(source))
    if not path.is_file():
        known = {**shipped_comparisons(), **shipped_recipes()}
        raise InputError(f"no recipe {source!r}: give the path of a TOML file or a name; {did_you_mean(source, known)}")
    try:
        text = read_small_text(path)
        if "row" not in tomllib.loads(text):
            return None
    except InputError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {source}: {error}; a comparison is a text file in TOML") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid TOML: {error}") from None
    found = parse_comparison(text, source)
    comparison = replace(found, row=tuple(replace(row, recipe=_beside(path, row.recipe)) for row in found.row))
    for row in comparison.row:
        _check_recipe(row, source)
    return comparison


def _beside(path: Path, recipe: str) -> str:
    """Give a recipe as `load_recipe` finds it: a file is looked for beside the comparison."""
    beside = path.parent / recipe
    return str(beside) if recipe not in shipped_recipes() and beside.is_file() else recipe


def _check_recipe(row: Row, where: str) -> None:
    try:
        load_recipe(row.recipe, row.set)
    except InputError as error:
        raise InputError(f"{where}: row {row.label!r}: {error}") from None
