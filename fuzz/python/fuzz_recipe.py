"""Recipes: read, written out, planned and counted, as `train --dry-run` and `flops` do."""

import tomllib
from pathlib import Path
from typing import Any
from zlib import crc32

from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main
from fuzzing.values import mutate_toml

LARGE = ("resnet", "mobilenet", "wide")  # seconds to build, even without weights


def consume(data: bytes, folder: Path) -> None:
    """Do with a recipe what commands do without training."""
    path = folder / "recipe.toml"
    path.write_bytes(data)
    attempt("dry run", lambda: _dry_run(path))
    attempt("overrides", lambda: _overridden(path, data))
    if crc32(data) % 8 == 0 and not any(name.encode() in data for name in LARGE):
        attempt("flops", lambda: _flops(path))


def _dry_run(path: Path) -> None:
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.run_pipeline import RunConfig, stages_of
    from rigl_compress.pipeline.stage_cache import up_to_date

    recipe = load_recipe(str(path))
    if load_recipe(str(_written(path, recipe))).to_toml() != recipe.to_toml():  # a NaN is no other NaN
        raise AssertionError("a recipe that is written out and read again is another")
    for stage in stages_of(RunConfig(recipe, path.parent / "run")):
        up_to_date(stage, path.parent / "stages.json")


def _written(path: Path, recipe: Any) -> Path:
    again = path.with_name("again.toml")
    again.write_text(recipe.to_toml(), encoding="utf-8")
    return again


def _overridden(path: Path, data: bytes) -> None:
    """Return the values of the file once more as options of the command line."""
    from rigl_compress.pipeline.recipe import load_recipe

    try:
        content = tomllib.loads(data.decode())
    except ValueError:
        return
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    options = [f"{table}.{key}={value}" for table, values in tables.items() for key, value in values.items()]
    load_recipe(str(path), options)


def _flops(path: Path) -> None:
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.recipe_flops import flops_json

    flops_json(load_recipe(str(path)), "multiply-add")


READER = Reader("recipe", consume, mutate_toml, share=20)

if __name__ == "__main__":
    main(READER)
