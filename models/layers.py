"""Which parameters of a network can be sparse, and how people name them."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn

from rigl_compress.models.errors import InputError, did_you_mean

# Biases and normalisation parameters stay dense: they scale with the neurons, not with the connections (paper, §3).
_ONE_WEIGHT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Give the weights that can be sparse, by name, in the order of the network.

    >>> [*sparse_parameters(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))]
    ['0.weight', '2.weight']
    """
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()  # a tied weight is one weight
    for path, module in model.named_modules():
        for name in _weight_names(module):
            parameter = getattr(module, name)
            if isinstance(parameter, nn.Parameter) and id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{path}.{name}" if path else name] = parameter
    return found


def _weight_names(module: nn.Module) -> list[str]:
    if isinstance(module, _ONE_WEIGHT):
        return ["weight"]
    if isinstance(module, nn.RNNBase):
        return [name for name, _ in module.named_parameters(recurse=False) if name.startswith("weight_")]
    return []


def shapes_of(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Give the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


def layer_types(model: nn.Module) -> dict[str, str]:
    """Give the type of the module that owns each parameter: 'fc1.weight' → 'Linear'."""
    return {
        f"{path}.{name}" if path else name: type(module).__name__
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


def match_layers(pattern: str, names: Iterable[str], types: Mapping[str, str]) -> list[str]:
    """Resolve what people write for layers: a parameter, its layer, a glob, a module type, 'first' or 'last'.

    >>> names = ["conv1.weight", "block.conv2.weight", "fc.weight"]
    >>> types = dict(zip(names, ["Conv2d", "Conv2d", "Linear"]))
    >>> match_layers("first", names, types), match_layers("*conv?", names, types), match_layers("Linear", names, types)
    (['conv1.weight'], ['conv1.weight', 'block.conv2.weight'], ['fc.weight'])
    """
    known = list(names)
    if pattern in ("first", "last") and known:
        return [known[0 if pattern == "first" else -1]]
    matched = [name for name in known if _matches(pattern, name, types.get(name, ""))]
    if not matched:
        choices = [name.rpartition(".")[0] or name for name in known]
        raise InputError(f"layer {pattern!r} matches nothing: {did_you_mean(pattern, choices)}")
    return matched


def _matches(pattern: str, name: str, kind: str) -> bool:
    layer = name.rpartition(".")[0]
    return pattern == kind or fnmatchcase(name, pattern) or fnmatchcase(layer, pattern)
