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
model = click.option(
    "--model",
    metavar="NAME|PACKAGE.MODULE:FACTORY",
    help="Another network than the recipe's: a registered one, or a function of your own that gives one.",
)
overrides = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the recipe; can be repeated."
)
data = click.option(
    "--data",
    metavar="NAME|PACKAGE.MODULE:FACTORY",
    help="Another data set than the recipe's: a registered one, or a function of your own that gives one.",
)
data_dir = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder with data sets, looked at before all others."
)
device = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
threads = click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")


def changes(
    overrides: tuple[str, ...], model: str | None = None, data: str | None = None, seed: int | None = None
) -> list[str]:
    """Give the options that stand for changes of the recipe as such; --set has the last word on all but the seed.

    >>> changes(("model.options.width=0.5",), model="mlp", seed=3)
    ['model={}', 'model.name=mlp', 'model.options.width=0.5', 'seed=3']
    >>> changes((), data="cifar10")
    ['data={}', 'data.name=cifar10']
    """
    named = {"model": model, "data": data}  # the options of another one do not fit
    instead = [change for key, name in named.items() if name for change in (f"{key}={{}}", f"{key}.name={name}")]
    return [*instead, *overrides, *([] if seed is None else [f"seed={seed}"])]


def needs_recipe(name: str | None) -> str:
    """Insist on a recipe."""
    if name is None:
        raise click.UsageError("give a recipe: --recipe NAME or --recipe FILE (see `rigl-compress list`)")
    return name
