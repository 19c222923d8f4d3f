"""Options of a data set: the keyword parameters of the function that makes it, checked by their annotations."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, get_type_hints

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.settings import convert

# What a function is given if it has a parameter of this name; no option of a recipe.
GIVEN = ("folder", "say")


def checked_options(make: Callable[..., Any], options: Mapping[str, Any], whose: str) -> dict[str, Any]:
    """Check options against the function that takes them.

    >>> def read(folder, length: int = 100): ...
    >>> checked_options(read, {"length": 5}, "data set 'text'")
    {'length': 5}
    >>> checked_options(read, {"lenght": 5}, "data set 'text'")
    Traceback (most recent call last):
    rigl_compress.models.errors.InputError: data set 'text' has no option 'lenght': did you mean 'length'? Known: length
    """
    allowed = [name for name in _parameters(make) if name not in GIVEN]
    hints = get_type_hints(make)
    for name in options:
        if name not in allowed:
            known = did_you_mean(name, allowed) if allowed else "it has none"
            raise InputError(f"{whose} has no option {name!r}: {known}")
    return {name: convert(hints.get(name, Any), value, f"data.options.{name}") for name, value in options.items()}


def _parameters(make: Callable[..., Any]) -> list[str]:
    fixed = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [name for name, parameter in signature(make).parameters.items() if parameter.kind not in fixed]
