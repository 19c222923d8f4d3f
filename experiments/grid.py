"""A grid as the spec of an experiment: every combination of values is a row. Keys of a recipe may be short."""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import product
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rigl_compress.core.dataclass_io import join
from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.experiments.spec import Experiment, Row, load_comparison
from rigl_compress.pipeline.recipe import Recipe, whole_number_part


def load_experiment(source: str, grid: Sequence[str], overrides: Sequence[str] = ()) -> Experiment:
    """Load a comparison, or make an experiment of a plain recipe and a grid. `overrides` change every row."""
    comparison = load_comparison(source)
    if comparison is None:
        return grid_experiment(source, grid, overrides)
    if grid:
        raise InputError(f"--grid is for plain recipes, {source} is a comparison: leave --grid out")
    return comparison.with_overrides(overrides)


def grid_experiment(source: str, grid: Sequence[str], overrides: Sequence[str] = ()) -> Experiment:
    """Make a row of every combination of a grid; overrides apply first, the values of the grid after them.

    >>> found = grid_experiment("mnist-rigl", ["method=rigl,set", "epochs=5"])
    >>> [(row.label, row.set) for row in found.row]  # doctest: +NORMALIZE_WHITESPACE
    [('method=rigl, epochs=5', ('sparsity.method=rigl', 'train.epochs=5')),
     ('method=set, epochs=5', ('sparsity.method=set', 'train.epochs=5'))]
    """
    name = Path(source).stem
    axes = [[f"{full_key(key)}={value}" for value in values] for key, values in map(grid_values, grid)]
    combinations = dict.fromkeys(product(*axes))  # a value given twice is one row
    rows = (Row(_label(settings) or name, source, (*overrides, *settings)) for settings in combinations)
    return Experiment(name, tuple(rows))


def _label(settings: Sequence[str]) -> str:
    """Return a readable name of settings: the last part of each key is enough.

    >>> _label(("learning_rate.peak=0.1", "sparsity.method=rigl"))
    'peak=0.1, method=rigl'
    """
    pairs = (setting.partition("=") for setting in settings)
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in pairs)


def grid_values(option: str) -> tuple[str, list[str]]:
    """Parse one option of a grid: a key and its values, lists in brackets.

    >>> grid_values("sparsity.method=rigl,set"), grid_values("learning_rate.drops=[60, 80],[90]")
    (('sparsity.method', ['rigl', 'set']), ('learning_rate.drops', ['[60, 80]', '[90]']))
    """
    key, equals, text = option.partition("=")
    if not equals or not key or not text:
        raise InputError(f"grid {option!r} is not of the form key=value,value, e.g. sparsity.method=rigl,set")
    try:
        return key, [_as_toml(value) for value in tomllib.loads(f"values = [{text}]")["values"]]
    except tomllib.TOMLDecodeError:
        return key, [whole_number_part(value) for value in text.split(",")]


def _as_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def full_key(key: str) -> str:
    """Return the only key of a recipe that ends like this; a key with dots is complete.

    >>> full_key("method"), full_key("sparsity"), full_key("model.options.width")
    ('sparsity.method', 'sparsity.sparsity', 'model.options.width')
    """
    if key == "seed":
        raise InputError("grid over seed, expected another key: use --seeds for the number of seeds")
    if "." in key:
        return key
    every = list(keys_of(Recipe))
    if key in every:
        return key
    matching = [each for each in every if each.rpartition(".")[2] == key]
    if len(matching) > 1:
        raise InputError(f"key {key!r} can mean {' or '.join(matching)}: write it in full")
    if not matching:
        raise InputError(f"no key {key!r} in a recipe: {did_you_mean(key, {k.rpartition('.')[2] for k in every})}")
    return matching[0]


def keys_of(kind: Any, where: str = "") -> Iterator[str]:
    """Yield the full keys of a table and of the tables in it.

    >>> list(keys_of(Recipe))[3:7]
    ['seed', 'data.name', 'data.holdout', 'data.options']
    """
    hints = get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is UnionType:
            hint = next(each for each in get_args(hint) if each is not type(None))
        key = join(where, field.name)
        yield from keys_of(hint, key) if is_dataclass(hint) else [key]
