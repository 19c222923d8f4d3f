"""Data sets of the user's own: `package.module:factory` in the place of a name."""

import json
from collections.abc import Mapping
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

from rigl_compress.models.errors import InputError
from rigl_compress.models.references import load_factory
from rigl_compress.pipeline.train.data.dataset import DataSet
from rigl_compress.pipeline.train.data.options import GIVEN, checked_options
from rigl_compress.pipeline.train.data.sources import Say


def load_own(name: str, data_dir: Path | None, say: Say, options: Mapping[str, Any]) -> DataSet:
    """Call the user's function. It gets the options, and --data-dir and a way to say something if it asks for them."""
    make = load_factory(name, "data set", DataSet, "rigl_compress.DataSet")
    chosen = checked_options(make, options, f"data set {name!r}")
    given = dict(zip(GIVEN, (data_dir, say), strict=True))
    asked = {key: value for key, value in given.items() if key in signature(make).parameters}
    try:
        found = make(**asked, **chosen)
    except InputError:
        raise
    except Exception as error:  # it is their code: anything can happen
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(f"data set {name!r} cannot be made: {type(error).__name__}: {reason}") from error
    if not isinstance(found, DataSet):
        raise InputError(f"data set {name!r} gives a {type(found).__name__}, expected a rigl_compress.DataSet")
    return found


@lru_cache(maxsize=4)
def own_outline(name: str, options: str) -> tuple[tuple[int, ...], int]:
    """The shape of an input and the number of training samples; options are JSON, so that they can be remembered."""
    found = load_own(name, None, lambda _: None, json.loads(options))
    return found.input_shape, len(found.train)
