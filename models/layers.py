"""Which parameters of a network can be sparse, what is a layer of its own among them, and how people name them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from rigl_compress.models.errors import InputError, did_you_mean

# Biases and normalisation parameters stay dense: they scale with the neurons, not with the connections (paper, §3).
_ONE_WEIGHT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# The gates of a recurrent layer, in the order in which torch stacks their rows in one matrix.
_GATES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.GRU: ("reset", "update", "new"),
    nn.LSTM: ("input", "forget", "cell", "output"),
}
_STACKED = ("weight_ih_", "weight_hh_")
ENDS = ("first", "last")  # of the layers, in the order in which they are given
_NORMS = (nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Part:
    """What is a layer of its own to sparse training: a whole weight, or the rows of one gate of a recurrent weight."""

    parameter: str
    rows: tuple[int, int] | None = None  # first, behind the last; None: all

    def of(self, tensor: Tensor) -> Tensor:
        """Give this part of the parameter or of a tensor like it, as a view."""
        return tensor if self.rows is None else tensor[self.rows[0] : self.rows[1]]


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Give the weights that can be sparse, by name, in the order of the network.

    >>> [*sparse_parameters(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))]
    ['0.weight', '2.weight']
    """
    found: dict[str, nn.Parameter] = {}
    # A tied weight is one weight; one that is looked up in an embedding stays as dense as it.
    seen = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for path, module in model.named_modules():
        for name in _weight_names(module):
            parameter = getattr(module, name)
            if isinstance(parameter, UninitializedParameter):
                raise InputError(f"{_join(path, name)!r} has no shape yet: run the model on a sample first")
            if isinstance(parameter, nn.Parameter) and id(parameter) not in seen:
                seen.add(id(parameter))
                found[_join(path, name)] = parameter
    return found


def left_dense(model: nn.Module) -> dict[str, int]:
    """Give the weights that sparse training does not reach, with their sizes: embeddings, packed attention, cells, …

    >>> left_dense(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 3), nn.LayerNorm(3)))
    {'0.weight': 40}
    """
    reached = {id(parameter) for parameter in sparse_parameters(model).values()}
    scales = {id(each) for module in model.modules() if isinstance(module, _NORMS) for each in module.parameters()}
    return {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and id(parameter) not in reached | scales
    }


def sparse_layers(model: nn.Module) -> dict[str, Part]:
    """Give what sparse training takes for layers, by name: weights, and the gates of recurrent weights one by one.

    >>> [*sparse_layers(nn.GRU(4, 3))][:3], sparse_layers(nn.GRU(4, 3))["weight_ih_l0.new"].rows
    (['weight_ih_l0.reset', 'weight_ih_l0.update', 'weight_ih_l0.new'], (6, 9))
    """
    layers: dict[str, Part] = {}
    for name, parameter in sparse_parameters(model).items():
        path, _, weight = name.rpartition(".")
        gates = _gates(model.get_submodule(path)) if weight.startswith(_STACKED) else ()
        height = len(parameter) // max(1, len(gates))
        layers |= {f"{name}.{gate}": Part(name, (i * height, i * height + height)) for i, gate in enumerate(gates)}
        if not gates:
            layers[name] = Part(name)
    return layers


def _gates(module: nn.Module) -> tuple[str, ...]:
    return next((gates for kind, gates in _GATES.items() if isinstance(module, kind)), ())


def _weight_names(module: nn.Module) -> list[str]:
    if isinstance(module, _ONE_WEIGHT):
        return ["weight"]
    if isinstance(module, nn.RNNBase):
        return [name for name, _ in module.named_parameters(recurse=False) if name.startswith("weight_")]
    return []


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def shapes_of(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Give the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


def layer_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Give the shape of each layer of sparse training.

    >>> layer_shapes(nn.GRU(4, 3))["weight_ih_l0.new"]
    (3, 4)
    """
    parameters = sparse_parameters(model)
    return {name: tuple(part.of(parameters[part.parameter]).shape) for name, part in sparse_layers(model).items()}


def layer_types(model: nn.Module) -> dict[str, str]:
    """Give the type of the module that owns each parameter: 'fc1.weight' → 'Linear'."""
    return {
        _join(path, name): type(module).__name__
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


def match_layers(pattern: str, names: Iterable[str], types: Mapping[str, str]) -> list[str]:
    """Resolve what people write for layers: a gate, a parameter, its layer, a glob, a module type, 'first' or 'last'.

    >>> names = ["conv1.weight", "block.conv2.weight", "fc.weight"]
    >>> types = dict(zip(names, ["Conv2d", "Conv2d", "Linear"]))
    >>> match_layers("first", names, types), match_layers("*conv?", names, types), match_layers("Linear", names, types)
    (['conv1.weight'], ['conv1.weight', 'block.conv2.weight'], ['fc.weight'])
    """
    known = list(names)
    if pattern in ENDS and known:
        end = _parameter_of(known[0 if pattern == "first" else -1])
        return [name for name in known if _parameter_of(name) == end]
    matched = [name for name in known if _matches(pattern, name, types)]
    if not matched:
        choices = [_parameter_of(name).rpartition(".")[0] or name for name in known]
        raise InputError(f"layer {pattern!r} matches nothing: {did_you_mean(pattern, dict.fromkeys(choices))}")
    return matched


def _parameter_of(name: str) -> str:
    """Give the parameter that a layer is a part of: 'gru.weight_ih_l0.new' → 'gru.weight_ih_l0'."""
    parameter, _, gate = name.rpartition(".")
    stacked = parameter.rpartition(".")[2].startswith(_STACKED)
    return parameter if stacked and any(gate in gates for gates in _GATES.values()) else name


def _matches(pattern: str, name: str, types: Mapping[str, str]) -> bool:
    parameter = _parameter_of(name)
    spellings = (name, parameter, parameter.rpartition(".")[0])
    return pattern == types.get(parameter, "") or any(fnmatchcase(spelling, pattern) for spelling in spellings)
