"""A comparison made of a plain recipe and a grid of values, whose keys may be short."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.settings import join
from rigl_compress.pipeline.compare.comparison import Comparison, Row
from rigl_compress.pipeline.recipe import Recipe
from rigl_compress.pipeline.sweep import cells, grid_values


def grid_comparison(source: str, grid: Sequence[str], seeds: int = 1) -> Comparison:
    """Make every combination of a grid a row.

    >>> found = grid_comparison("mnist-rigl", ["method=rigl,set", "epochs=5"], seeds=3)
    >>> [(row.label, row.set) for row in found.row]  # doctest: +NORMALIZE_WHITESPACE
    [('method=rigl, epochs=5', ('sparsity.method=rigl', 'train.epochs=5')),
     ('method=set, epochs=5', ('sparsity.method=set', 'train.epochs=5'))]
    """
    name = Path(source).stem
    settings = [cell.settings for cell in cells(map(full_option, grid), [0])]
    labels = [cell.label or name for cell in cells(map(full_option, grid), [0])]
    rows = tuple(Row(label, source, each) for label, each in zip(labels, settings, strict=True))
    return Comparison(name, rows, seeds=seeds)


def full_option(option: str) -> str:
    """Write an option of a grid with the full key.

    >>> full_option("sparsity=.8,.9")
    'sparsity.sparsity=.8,.9'
    """
    key, _ = grid_values(option)
    return full_key(key) + option[len(key) :]


def full_key(key: str) -> str:
    """Give the key of a recipe that ends like this; one with dots is full already.

    >>> full_key("method"), full_key("sparsity"), full_key("model.options.width")
    ('sparsity.method', 'sparsity.sparsity', 'model.options.width')
    """
    if key == "seed":
        raise InputError("seed is no key of a grid: say how many seeds with --seeds")
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
    """List the full keys of a table and the tables in it.

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
