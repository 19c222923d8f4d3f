"""Data sets of the user's own: `module:function` in the place of a name."""

import json
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from rigl_compress.models.errors import InputError
from rigl_compress.pipeline.train.data.dataset import DataSet
from rigl_compress.pipeline.train.data.options import GIVEN, checked_options
from rigl_compress.pipeline.train.data.sources import Say


def is_own(name: str) -> bool:
    """Whether a name is that of a function rather than of a registered data set.

    >>> is_own("mypackage.digits:load"), is_own("mnist")
    (True, False)
    """
    return ":" in name


def load_own(name: str, data_dir: Path | None, say: Say, options: Mapping[str, Any]) -> DataSet:
    """Call the user's function. It gets the options, and --data-dir and a way to say something if it asks for them."""
    make = find_function(name)
    chosen = checked_options(make, options, f"data set {name!r}")
    given = dict(zip(GIVEN, (data_dir, say), strict=True))
    asked = {key: value for key, value in given.items() if key in signature(make).parameters}
    try:
        found = make(**asked, **chosen)
    except TypeError as error:
        raise InputError(f"data set {name!r} cannot be made: {error}") from error
    if not isinstance(found, DataSet):
        raise InputError(f"{name} gave {type(found).__name__}, expected a rigl_compress.DataSet")
    return found


@lru_cache(maxsize=4)
def own_outline(name: str, options: str) -> tuple[tuple[int, ...], int]:
    """The shape of an input and the number of training samples; options are JSON, so that they can be remembered."""
    found = load_own(name, None, lambda _: None, json.loads(options))
    return found.input_shape, len(found.train)


def find_function(name: str) -> Callable[..., Any]:
    """Import `module:function`, from what is installed or from the current folder.

    >>> find_function("math:sqrt")(9)
    3.0
    """
    module_name, _, attribute = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:  # an installed command finds only what is installed
        sys.path.append(here)
    try:
        module = import_module(module_name)
    except (ImportError, ValueError) as error:
        cure = "give module:function, the module installed or in the current folder"
        raise InputError(f"{name!r} cannot be imported ({error}): {cure}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise InputError(f"module {module_name!r} has no function {attribute!r}: give module:function")
    return function  # type: ignore[no-any-return]
