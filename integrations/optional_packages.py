"""Packages that only an extra installs."""

from importlib import import_module
from typing import Any

from rigl_compress.core.errors import InputError


class MissingPackageError(InputError, ImportError):
    """A package of an optional extra is not installed."""


def imported(module: str, extra: str) -> Any:
    """Import a module of an optional package; where that is missing, name the extra that installs it.

    >>> imported("math", "calculus").tau > 6
    True
    >>> imported("no_such_thing.at_all", "things")
    Traceback (most recent call last):
    rigl_compress.integrations.optional_packages.MissingPackageError: no_such_thing is not installed: \
pip install 'rigl-compress[things]'
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (package, module):
            raise
        raise MissingPackageError(f"{package} is not installed: pip install 'rigl-compress[{extra}]'") from None
