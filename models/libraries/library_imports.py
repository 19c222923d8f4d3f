"""Packages that an extra of this one installs, and weights of theirs that fit only in part."""

import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError, first_line

MOST_NAMES = 4  # in a message


def optional_package(package: str, what: str, extra: str = "") -> Any:
    """Import a package; raise `InputError` with the extra that installs it where it is missing.

    >>> optional_package("json", "model 'json:a'").__name__
    'json'
    >>> optional_package("no_such_package", "model 'some:net'", "some")
    Traceback (most recent call last):
    rigl_compress.core.errors.InputError: model 'some:net' needs the package no_such_package: install it with \
`pip install rigl-compress[some]`
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != (name := package.partition(".")[0]):
            raise _broken(package, what, error) from error
        cure = f"install it with `pip install rigl-compress[{extra or name}]`"
        raise InputError(f"{what} needs the package {name}: {cure}") from None
    except Exception as error:  # of a package that was built for another torch
        raise _broken(package, what, error) from error


def _broken(package: str, what: str, error: Exception) -> InputError:
    reason = f"{type(error).__name__}: {first_line(error)}"
    return InputError(
        f"{what}: importing {package} failed ({reason}): install a version that fits torch {torch.__version__}"
    )


def load_fitting(model: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    """Load the weights that fit by name and shape, and warn of those of the network that keep their random values."""
    own = model.state_dict()
    fitting = {name: each for name, each in weights.items() if name in own and own[name].shape == each.shape}
    if not fitting:
        raise InputError(f"{what}: none of {len(weights)} weights fits by name and shape: name other weights")
    model.load_state_dict(fitting, strict=False)
    warn_of_random([name for name in own if name not in fitting], what)


def warn_of_random(names: Iterable[str], what: str) -> None:
    """Warn once of weights that no file had in this shape: a new head is meant to be random, all else is not.

    >>> with warnings.catch_warnings(record=True) as said:
    ...     warn_of_random([], "model 'some:net'")
    >>> said
    []
    """
    if found := sorted(names):
        more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        listed = ", ".join(found[:MOST_NAMES]) + more
        warnings.warn(f"{what}: the pretrained weights have no {listed} of this shape: random at first", stacklevel=2)
