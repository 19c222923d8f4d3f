"""Pretrained weights of a library that fit a network only in part."""

import warnings
from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from rigl_compress.core.errors import InputError

MOST_NAMES = 4  # in a message


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
