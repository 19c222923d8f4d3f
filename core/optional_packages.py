"""Packages that only an extra of this one installs."""

from importlib import import_module
from typing import Any

from rigl_compress.core.errors import InputError, first_line


class OptionalPackageError(InputError, ImportError):
    """A package of an optional extra is missing, or its import fails."""


def optional_package(module: str, extra: str, what: str = "") -> Any:
    """Import a module of an optional package; where that is missing, name the extra that installs it and what needs it.

    >>> optional_package("math", "calculus").tau > 6
    True
    >>> optional_package("no_such_thing.at_all", "things")
    Traceback (most recent call last):
    rigl_compress.core.optional_packages.OptionalPackageError: no_such_thing is not installed: \
pip install 'rigl-compress[things]'
    >>> optional_package("no_such_thing", "things", "model 'some:net'")
    Traceback (most recent call last):
    rigl_compress.core.optional_packages.OptionalPackageError: model 'some:net' needs the package no_such_thing: \
install it with `pip install rigl-compress[things]`
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in (package, module):
            raise _broken(module, what, error) from error
        raise OptionalPackageError(_missing(package, extra, what)) from None
    except Exception as error:  # of a package that was built for another torch
        raise _broken(module, what, error) from error


def _missing(package: str, extra: str, what: str) -> str:
    if not what:
        return f"{package} is not installed: pip install 'rigl-compress[{extra}]'"
    return f"{what} needs the package {package}: install it with `pip install rigl-compress[{extra}]`"


def _broken(module: str, what: str, error: Exception) -> OptionalPackageError:
    import torch

    importing = f"{what}: importing" if what else "importing"
    reason = f"{type(error).__name__}: {first_line(error)}"
    cure = f"install a version that fits torch {torch.__version__}"
    return OptionalPackageError(f"{importing} {module} failed ({reason}): {cure}")
