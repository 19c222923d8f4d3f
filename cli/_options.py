"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
recipe = click.option(
    "--recipe", metavar="NAME|FILE", help="A shipped recipe (see `rigl-compress list`) or a TOML file."
)
overrides = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the recipe; can be repeated."
)
data = click.option(
    "--data", metavar="NAME|MODULE:FUNCTION", help="A data set, or a function of yours that makes one: data.name."
)
data_dir = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder with data sets, looked at before all others."
)
device = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
threads = click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")


def changes(overrides: tuple[str, ...], **named: object) -> list[str]:
    """Give what is to be changed in the recipe: --set, and options that have a name of their own.

    >>> changes(("train.epochs=3",), **{"data.name": "mnist", "seed": None})
    ['train.epochs=3', 'data.name=mnist']
    """
    return [*overrides, *(f"{key}={value}" for key, value in named.items() if value is not None)]


def needs_recipe(name: str | None) -> str:
    """Insist on a recipe."""
    if name is None:
        raise click.UsageError("give a recipe: --recipe NAME or --recipe FILE (see `rigl-compress list`)")
    return name
