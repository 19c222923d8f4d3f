"""Code from outside of this package by reference: `package.module:NAME`."""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from inspect import isbuiltin, isclass
from pathlib import Path
from types import ModuleType
from typing import Any

from rigl_compress.core.errors import InputError, did_you_mean, first_line
from rigl_compress.core.trust import check_trusted


def is_reference(name: str) -> bool:
    """Whether a text is a reference rather than the name of something registered.

    >>> is_reference("mynet:small"), is_reference("resnet-50")
    (True, False)
    """
    return ":" in name


def as_factory(found: Any, what: str, returns: type, called: str) -> Callable[..., Any]:
    """Check that an object is a function that returns a type, or a class of that type; it is not called before.

    >>> from collections import Counter
    >>> as_factory(Counter, "model 'collections:Counter'", dict, "dict")
    <class 'collections.Counter'>
    >>> as_factory(len, "model 'builtins:len'", dict, "dict")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: model 'builtins:len' is a builtin_function_or_method, expected a function \
that returns a dict
    """
    if not callable(found) or isbuiltin(found):
        raise InputError(f"{what} is a {type(found).__name__}, expected a function that returns a {called}")
    if not (issubclass(found, returns) if isclass(found) else _may_return(found, returns)):
        raise InputError(f"{what} does not return a {called}: name a function that returns one")
    return found  # type: ignore[no-any-return]


def _may_return(function: Callable[..., Any], returns: type) -> bool:
    """Whether the annotation of a function, if it has one, allows a type."""
    annotated = getattr(function, "__annotations__", {}).get("return", returns)
    return not isclass(annotated) or issubclass(annotated, returns) or annotated in returns.__mro__


def load_reference(reference: str, kind: str) -> Any:
    """Import what a reference names; the working folder is searched after everything that is installed.

    A reference that only a file names is refused (see `trust`).

    >>> load_reference("collections:Counter", "model")
    <class 'collections.Counter'>
    """
    module_name, _, name = reference.partition(":")
    file = Path(module_name)
    if file.suffix == ".py" and ("/" in module_name or file.is_file()):
        cure = f"run the command in the folder {file.parent.absolute()} and name {file.stem}:{name}"
        raise InputError(f"{kind} {str(reference)!r} is a file, expected package.module:NAME: {cure}")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise InputError(f"{kind} {str(reference)!r} is not of the form package.module:NAME")
    check_trusted(reference, kind)
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
        with redirect_stdout(sys.stderr):  # stdout is for results
            return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(
                f"{what}: no module {error.name!r}: install it, or run the command in the folder that holds it"
            ) from None
        raise InputError(f"{what}: importing {name} failed: {error}") from error
    except Exception as error:  # foreign code can raise anything
        raise InputError(f"{what}: importing {name} failed: {type(error).__name__}: {first_line(error)}") from error
