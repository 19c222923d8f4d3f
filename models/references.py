"""People's own code by reference: `package.module:name`."""

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import isbuiltin, isclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.trust import check_trusted


def is_reference(name: str) -> bool:
    """Tell a reference from the name of something registered.

    >>> is_reference("mynet:small"), is_reference("resnet-50")
    (True, False)
    """
    return ":" in name


def load_factory(reference: str, kind: str, gives: type, called: str) -> Callable[..., Any]:
    """Import a function that gives something of a type, or a class of that type; what cannot give it is not called.

    >>> load_factory("collections:Counter", "model", dict, "dict")
    <class 'collections.Counter'>
    >>> load_factory("os:listdir", "model", dict, "dict")
    Traceback (most recent call last):
    rigl_compress.models.errors.InputError: model 'os:listdir' is a builtin_function_or_method, expected a function \
that gives a dict
    """
    found = load_reference(reference, kind)
    if not callable(found) or isbuiltin(found):
        raise InputError(f"{kind} {reference!r} is a {type(found).__name__}, expected a function that gives a {called}")
    if not (issubclass(found, gives) if isclass(found) else _may_give(found, gives)):
        raise InputError(f"{kind} {reference!r} does not give a {called}: name a function that gives one")
    return found  # type: ignore[no-any-return]


def _may_give(function: Callable[..., Any], gives: type) -> bool:
    """Say whether the annotation of a function, if it has one, allows a type."""
    given = getattr(function, "__annotations__", {}).get("return", gives)
    return not isclass(given) or issubclass(given, gives) or given in gives.__mro__


def load_reference(reference: str, kind: str) -> Any:
    """Import what a reference names; the working folder is searched after everything that is installed.

    One that only a file names is refused (see `trust`).

    >>> load_reference("collections:Counter", "model")
    <class 'collections.Counter'>
    """
    check_trusted(reference, kind)
    module_name, _, name = reference.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise InputError(f"{kind} {reference!r} is not of the form package.module:factory")
    module = _module(module_name, f"{kind} {reference!r}")
    if not hasattr(module, name):
        public = [each for each in vars(module) if not each.startswith("_")]
        raise InputError(f"{kind} {reference!r}: {module_name} has no {name!r}: {did_you_mean(name, public)}")
    return getattr(module, name)


def _module(name: str, what: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script does not search it
        sys.path.append(here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"{what}: no module {error.name!r}: install it, or call from the folder that holds it"
            ) from None
        raise InputError(f"{what}: importing {name} failed: {error}") from error
    except Exception as error:  # it is their code: anything can happen
        reason = next(iter(str(error).splitlines()), "")
        raise InputError(f"{what}: importing {name} failed: {type(error).__name__}: {reason}") from error
