"""Options of a data set: the keyword parameters of its function, checked by their annotations."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, Unpack, get_args, get_origin, get_type_hints

from rigl_compress.core.dataclass_io import convert
from rigl_compress.core.errors import InputError, did_you_mean

# Arguments that are passed if the function has a parameter of this name; not options of a recipe.
GIVEN = ("folder", "log")


def checked_options(make: Callable[..., Any], options: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Check options against the function that takes them.

    >>> def read(folder, length: int = 100): ...
    >>> checked_options(read, {"length": 5}, "data set 'text'")
    {'length': 5}
    >>> checked_options(read, {"lenght": 5}, "data set 'text'")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: data set 'text' has no option 'lenght': did you mean 'length'? Known: length
    """
    hints = {**get_type_hints(make), **_further(make)}
    allowed = [name for name in (*_parameters(make), *_further(make)) if name not in GIVEN]
    for name in options:
        if name not in allowed:
            known = did_you_mean(name, allowed) if allowed else "it has none"
            raise InputError(f"{whose} has no option {name!r}: {known}")
    return {name: convert(hints.get(name, Any), value, f"data.options.{name}") for name, value in options.items()}


def _further(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of options that stand in a TypedDict: `**options: Unpack[ImageOptions]`."""
    hints = get_type_hints(make)
    further = [each for each in signature(make).parameters.values() if each.kind is Parameter.VAR_KEYWORD]
    tables = [get_args(hints[each.name])[0] for each in further if get_origin(hints.get(each.name)) is Unpack]
    return {name: hint for table in tables for name, hint in get_type_hints(table).items()}


def _parameters(make: Callable[..., Any]) -> list[str]:
    fixed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [name for name, parameter in signature(make).parameters.items() if parameter.kind not in fixed]
