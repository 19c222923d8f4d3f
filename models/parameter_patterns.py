"""Patterns that match any parameter or buffer of a network, biases and normalisation among them."""

from collections.abc import Iterable

from torch import nn

from rigl_compress.models.forward_order import find_layers
from rigl_compress.models.sparse_parameters import ENDS, match_layers, sparse_parameters


def find_parameters(model: nn.Module, pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that a pattern matches: a name, a module with all that is below it, a glob, a module type.

    'first' and 'last' are the first and the last layer of the forward pass, with their biases.

    >>> model = nn.Sequential(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2))
    >>> names = [name for name, _ in model.named_parameters()]
    >>> find_parameters(model, "last", names), find_parameters(model, "BatchNorm1d", names)
    (['1.weight', '1.bias'], ['0.1.weight', '0.1.bias'])
    >>> len(find_parameters(model, "0", names)), find_parameters(model, "*.bias", names)
    (4, ['0.0.bias', '0.1.bias', '1.bias'])
    """
    known = list(names)
    if pattern in ENDS and (layers := [*sparse_parameters(model)]):
        owners = {_owner(name) for name in find_layers(model, pattern, layers)}
        return [name for name in known if _owner(name) in owners]
    below = [name for name in known if name.startswith(f"{pattern}.")]
    return below or match_layers(pattern, known, _types(model, known))


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _types(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    kinds = {path: type(module).__name__ for path, module in model.named_modules()}
    return {name: kinds.get(_owner(name), "") for name in names}
