"""Weights from elsewhere into a network: names are changed by patterns, and what does not fit is listed."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.parameter_patterns import find_parameters
from rigl_compress.models.sparse_model import load_weights

_MOST_NAMES = 4
_COUNTER = "num_batches_tracked"  # of batch normalisation: older files lack it, and nothing depends on it


def load_fitting(
    model: nn.Module, weights: Mapping[str, Tensor], where: str, rename: Mapping[str, str], skip: Sequence[str]
) -> list[str]:
    """Load weights into a network, and return the names that stay as they were built; raise if some do not fit."""
    renamed = rename_all(weights, rename)
    own = model.state_dict()
    left = {name for pattern in skip for name in find_parameters(model, pattern, dict.fromkeys([*own, *renamed]))}
    wanted = {name: tensor for name, tensor in own.items() if name not in left}
    given = {name: tensor for name, tensor in renamed.items() if name not in left}
    _check(wanted, given, where)
    fitting = {name: given[name] for name in wanted if name in given}
    _check_finite(fitting, where)
    load_weights(model, own | fitting, where)
    return [name for name in own if name in left]


def rename_all(weights: Mapping[str, Tensor], rename: Mapping[str, str]) -> dict[str, Tensor]:
    r"""Replace regular expressions in all names, one after the other.

    >>> rename_all({"net.0.w": Tensor(), "net.1.w": Tensor()}, {r"^net\.(\d)": r"block\1", "w$": "weight"}).keys()
    dict_keys(['block0.weight', 'block1.weight'])
    """
    names = {name: name for name in weights}
    for pattern, replacement in rename.items():
        changed = {name: _replaced(pattern, replacement, now) for name, now in names.items()}
        if changed == names and not any(re.search(pattern, name) for name in names.values()):
            raise InputError(f"start.rename: {pattern!r} matches no name: they are like {_some(names.values())}")
        names = changed
    if len(set(names.values())) < len(names):
        twice = next(now for now in names.values() if [*names.values()].count(now) > 1)
        raise InputError(f"start.rename gives several weights the name {twice!r}: make its patterns stricter")
    return {now: weights[name] for name, now in names.items()}


def _replaced(pattern: str, replacement: str, name: str) -> str:
    try:
        return re.sub(pattern, replacement, name)
    except (re.error, IndexError) as error:
        raise InputError(f"start.rename: {replacement!r} does not fit {pattern!r} ({error}): see Python's re") from None


def _check(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], where: str) -> None:
    """Raise with all names that are missing, unexpected, or of another shape or kind."""
    found = {wanted[name].data_ptr() for name in wanted if name in given}
    missing = [
        name
        for name, tensor in wanted.items()
        # A tied weight stands in a file once.
        if name not in given and not name.endswith(_COUNTER) and (not tensor.numel() or tensor.data_ptr() not in found)
    ]
    unexpected = [name for name in given if name not in wanted]
    shapes = {name: _difference(given[name], wanted[name]) for name in wanted if name in given}
    wrong = [f"{name} is {difference}" for name, difference in shapes.items() if difference]
    parts = {"missing": missing, "unexpected": unexpected, "of another shape": wrong}
    if any(parts.values()):
        listed = "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in parts.items() if names)
        bad = [*missing, *unexpected, *(name for name, each in shapes.items() if each)]
        raise InputError(f"{where}: the weights do not fit the model ({listed}); {_cure(missing, unexpected, bad)}")


def _difference(given: Tensor, wanted: Tensor) -> str:
    """Describe how a weight differs from what is wanted; empty if it fits."""
    if given.shape != wanted.shape:
        return f"{_size(given)}, expected {_size(wanted)}"
    if given.is_floating_point() != wanted.is_floating_point():
        return f"{given.dtype}, expected {wanted.dtype}"
    return ""


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"


def _some(names: Iterable[str]) -> str:
    """List the first few names.

    >>> _some("abcdef")
    'a, b, c, d, …'
    """
    every = list(names)
    return ", ".join([*every[:_MOST_NAMES], "…"] if len(every) > _MOST_NAMES else every)


def _cure(missing: Sequence[str], unexpected: Sequence[str], bad: Sequence[str]) -> str:
    """Suggest patterns for `start.rename` or `start.skip`."""
    if pattern := _common_change(missing, unexpected):
        return f"try start.rename = {{{pattern}}}"
    if len(missing) > 1 and len(missing) <= 2 * len(unexpected):  # the same layers by other names: never skip those
        return "the file has other names: change them with start.rename"
    modules = dict.fromkeys(name.rpartition(".")[0] or name for name in bad)
    listed = ", ".join(f'"{module}"' for module in [*modules][:_MOST_NAMES])
    rename = "change names with start.rename, or " if missing and unexpected else ""
    return f"{rename}leave layers as they are built with start.skip = [{listed}]"


def _common_change(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return the change of names, written in TOML, that makes most of them fit: a prefix less, or one more.

    >>> _common_change(["fc.weight", "fc.bias"], ["model.fc.weight", "model.fc.bias"])
    "'^model\\\\.' = ''"
    >>> _common_change(["net.fc.weight", "net.fc.bias"], ["fc.weight", "fc.bias"])
    "'^' = 'net.'"
    """
    for prefix in _prefixes(unexpected):
        if _mostly({name.removeprefix(prefix) for name in unexpected}, missing):
            return f"'^{re.escape(prefix)}' = ''"
    for prefix in _prefixes(missing):
        if _mostly({f"{prefix}{name}" for name in unexpected}, missing):
            return f"'^' = '{prefix}'"
    return ""


def _prefixes(names: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(f"{name.partition('.')[0]}." for name in names if "." in name)]


def _mostly(names: set[str], among: Sequence[str]) -> bool:
    return bool(names) and len(names.intersection(among)) >= ceil(len(names) / 2)


def _check_finite(weights: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not tensor.float().isfinite().all():
            raise InputError(f"{where}: {name!r} has infinite or undefined numbers: make the file again")
