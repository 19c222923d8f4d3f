"""Parameters that can be sparse, the layers among them, and patterns that match their names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import UninitializedParameter

from rigl_compress.core.errors import InputError, did_you_mean

# Biases and normalisation parameters stay dense: they scale with the neurons, not with the connections (paper, §3).
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_ONE_WEIGHT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)
# What torch stacks as rows of one matrix, in its order: the gates of a recurrent layer, queries, keys and values.
_STACKED_PARTS: tuple[tuple[tuple[type[nn.Module], ...], tuple[str, ...]], ...] = (
    ((nn.GRU, nn.GRUCell), ("reset", "update", "new")),
    ((nn.LSTM, nn.LSTMCell), ("input", "forget", "cell", "output")),
    ((nn.MultiheadAttention,), ("q", "k", "v")),
)
_STACKED = ("weight_ih", "weight_hh", "in_proj_weight")
_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")  # where keys or values have another width
ENDS = ("first", "last")  # of the layers, in the given order
_NORMS = (nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Part:
    """A layer of sparse training: a weight, or some of its rows: those of a gate, of queries, keys or values."""

    parameter: str
    rows: tuple[int, int] | None = None  # start and end; None: all

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of the parameter, or of a tensor of its shape, as a view."""
        return tensor if self.rows is None else tensor[self.rows[0] : self.rows[1]]


def sparse_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights that can be sparse, by name, in the network's order.

    >>> [*sparse_parameters(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))]
    ['0.weight', '2.weight']
    """
    found: dict[str, nn.Parameter] = {}
    # A tied weight is one weight; one that is tied to an embedding stays dense.
    seen = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for path, module in model.named_modules():
        for name in weight_names(module):
            parameter = getattr(module, name)
            if isinstance(parameter, UninitializedParameter):
                raise InputError(f"{qualified_name(path, name)!r} has no shape yet: run the model on a sample first")
            if isinstance(parameter, nn.Parameter) and id(parameter) not in seen:
                seen.add(id(parameter))
                found[qualified_name(path, name)] = parameter
    return found


def left_dense(model: nn.Module) -> dict[str, int]:
    """Return the weights that always stay dense, with their sizes: embeddings, parametrized layers, …

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


def dense_by_default(model: nn.Module) -> tuple[str, ...]:
    """Return the patterns of layers that a network keeps dense by default: its `dense_layers`.

    >>> class Net(nn.Module):
    ...     dense_layers = ("*head",)
    >>> dense_by_default(Net()), dense_by_default(nn.Linear(2, 2))
    (('*head',), ())
    """
    return tuple(pattern for module in model.modules() for pattern in getattr(module, "dense_layers", ()))


def sparse_layers(model: nn.Module) -> dict[str, Part]:
    """Return the layers of sparse training by name: weights; gates, queries, keys and values each by itself.

    >>> [*sparse_layers(nn.GRU(4, 3))][:3], sparse_layers(nn.GRU(4, 3))["weight_ih_l0.new"].rows
    (['weight_ih_l0.reset', 'weight_ih_l0.update', 'weight_ih_l0.new'], (6, 9))
    """
    layers: dict[str, Part] = {}
    for name, parameter in sparse_parameters(model).items():
        path, _, weight = name.rpartition(".")
        parts = _stacked_parts(model.get_submodule(path)) if weight.startswith(_STACKED) else ()
        height = len(parameter) // max(1, len(parts))
        layers |= {f"{name}.{part}": Part(name, (i * height, i * height + height)) for i, part in enumerate(parts)}
        if not parts:
            layers[name] = Part(name)
    return layers


def _stacked_parts(module: nn.Module) -> tuple[str, ...]:
    return next((parts for kinds, parts in _STACKED_PARTS if isinstance(module, kinds)), ())


def weight_names(module: nn.Module) -> list[str]:
    """Return the names of the weights of a layer that can be sparse."""
    if isinstance(module, _ONE_WEIGHT):
        return ["weight"]
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return [name for name, _ in module.named_parameters(recurse=False) if name.startswith("weight_")]
    if isinstance(module, nn.MultiheadAttention):  # its output projection is a layer of its own
        return list(_SEPARATE) if module.in_proj_weight is None else ["in_proj_weight"]
    return []


def qualified_name(path: str, name: str) -> str:
    """Return the name of a parameter in a network, from the path of its module; that of the network is empty."""
    return f"{path}.{name}" if path else name


def shapes_of(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in parameters.items()}


def layer_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of each layer of sparse training.

    >>> layer_shapes(nn.GRU(4, 3))["weight_ih_l0.new"]
    (3, 4)
    """
    parameters = sparse_parameters(model)
    return {name: tuple(part.of(parameters[part.parameter]).shape) for name, part in sparse_layers(model).items()}


def layer_types(model: nn.Module) -> dict[str, str]:
    """Return the type of the module that owns each parameter: 'fc1.weight' → 'Linear'."""
    return {
        qualified_name(path, name): _type_name(module)
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }


def _type_name(module: nn.Module) -> str:
    """Return the name of a module's type; the output projection of attention is a linear layer to everyone."""
    return "Linear" if type(module) is NonDynamicallyQuantizableLinear else type(module).__name__


def match_layers(pattern: str, names: Iterable[str], types: Mapping[str, str]) -> list[str]:
    """Return the layers that match a pattern: a part, a parameter, its layer, a glob, a module type, 'first' or 'last'.

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
    """Return the parameter that a layer is part of: 'gru.weight_ih_l0.new' → 'gru.weight_ih_l0'."""
    parameter, _, last = name.rpartition(".")
    stacked = parameter.rpartition(".")[2].startswith(_STACKED)
    return parameter if stacked and any(last in parts for _, parts in _STACKED_PARTS) else name


def _matches(pattern: str, name: str, types: Mapping[str, str]) -> bool:
    parameter = _parameter_of(name)
    spellings = (name, parameter, parameter.rpartition(".")[0])
    return pattern == types.get(parameter, "") or any(fnmatchcase(spelling, pattern) for spelling in spellings)
