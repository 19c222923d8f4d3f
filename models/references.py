"""People's own code by reference: `package.module:name`."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rigl_compress.models.errors import InputError, did_you_mean


def is_reference(name: str) -> bool:
    """Tell a reference from the name of something registered.

    >>> is_reference("mynet:small"), is_reference("resnet-50")
    (True, False)
    """
    return ":" in name


def load_reference(reference: str, kind: str) -> Any:
    """Import what a reference names; the working folder is searched after everything that is installed.

    >>> load_reference("collections:Counter", "model")
    <class 'collections.Counter'>
    """
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
