"""The topology that a sparsifier starts from, and the warnings about it."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.core.errors import InputError
from rigl_compress.core.wording import listed
from rigl_compress.models.sparse_modules import SparseModule, make_sparse
from rigl_compress.models.sparse_parameters import TRANSPOSED, Part, left_dense, sparse_layers, sparse_parameters
from rigl_compress.models.topology import Topology, connections
from rigl_compress.sparsity.layer_state import Layer
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.reachability import cut_off
from rigl_compress.sparsity.sparse_layer import SparseLayer
from rigl_compress.sparsity.sparsity_config import SparsityConfig

# Layers without gates: torch.fx takes them as a whole, or their units are not those of a linear layer.
_UNGATED = (
    *(nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
    *TRANSPOSED,
)


def initial_layers(
    model: nn.Module, config: SparsityConfig, seed: int, topology: Topology | None, reasons: Mapping[str, str]
) -> list[Layer]:
    """Return the layers of a model with their initial connections: drawn by the method, or those of a topology.

    Layers without a reason to stay masked are turned into sparse ones.
    """
    method, densities, parameters = config.rule, config.densities(model), sparse_parameters(model)
    layers: list[Layer] = []
    for name, part in sparse_layers(model).items():
        if name not in reasons:
            layers.append(_sparse_layer(model, name, part, method, (densities[name], seed, topology)))
            continue
        parameter, given = parameters[part.parameter], None if topology is None else topology.get(part.parameter)
        target = connections(densities[name], part.of(parameter).numel())
        if topology is None:
            layers.append(_drawn(Layer.empty(name, parameter, part, target), method, seed))
        elif given is None:
            layers.append(Layer.full(name, parameter, part))
        else:
            layers.append(_taken(Layer.empty(name, parameter, part, target), part.of(given)))
    return layers


@torch.no_grad()
def _sparse_layer(
    model: nn.Module, name: str, part: Part, method: Method, start: tuple[float, int, Topology | None]
) -> Layer:
    """Turn a layer into a sparse one with its initial connections."""
    module, (density, seed, topology) = model.get_submodule(part.parameter.rpartition(".")[0]), start
    weight = module.get_parameter("weight")
    if topology is None:
        assert method.start is not None
        view = Layer.unwired(name, weight, part).view(method.options, seed, -1)
        positions = method.start(view, connections(density, weight.numel())).sort().values
    else:
        positions = active_positions(topology[part.parameter])
    return SparseLayer(name, make_sparse(module, positions), part, len(positions))


def start_densities(model: nn.Module, config: SparsityConfig, topology: Topology | None) -> dict[str, float]:
    """Return the density with which each layer starts."""
    if topology is None:
        return config.densities(model)
    statistics = {layer.name: 1 - layer.sparsity for layer in topology.layers}
    return {name: statistics.get(part.parameter, 1.0) for name, part in sparse_layers(model).items()}


def check_topology(model: nn.Module, topology: Topology | None) -> None:
    """Raise if a topology does not fit the model."""
    if topology is None:
        return
    if not isinstance(topology, Topology):
        raise InputError(
            f"topology is a {type(topology).__name__}, expected a Topology: use Topology.from_masks(masks)"
        )
    topology.check_fits(model)
    if foreign := [name for name in topology if name not in sparse_parameters(model)]:
        raise InputError(
            f"the topology has masks for {', '.join(foreign)}, which sparse training does not reach: leave them out"
        )


@torch.no_grad()
def _drawn(layer: Layer, method: Method, seed: int) -> Layer:
    """Return a layer with the connections that a method starts from."""
    if method.start is None or layer.target >= layer.size:
        return replace(Layer.full(layer.name, layer.parameter, layer.part), target=layer.target)
    every = torch.ones((), dtype=torch.bool, device=layer.mask.device).expand(layer.mask.shape)
    layer.activate(method.start(replace(layer.view(method.options, seed, -1), mask=every), layer.target))
    return layer


def _taken(layer: Layer, mask: Tensor) -> Layer:
    """Return a layer with the connections of a mask, which it is to keep in number."""
    layer.activate(active_positions(mask.to(layer.mask.device)))
    layer.target = layer.active
    return layer


def active_positions(mask: Tensor) -> Tensor:
    """Return the flat positions where a mask is True.

    >>> active_positions(torch.tensor([[False, True], [True, False]])).tolist()
    [1, 2]
    """
    return mask.reshape(-1).nonzero().squeeze(1)


def check_plain(model: nn.Module) -> None:
    """Raise if layers are those of another sparsifier."""
    if any(isinstance(module, SparseModule) for module in model.modules()):
        raise InputError("layers of the model train on sparse kernels already: call finish() of their Sparsifier first")


def check_method(method: Method, topology: Topology | str | None) -> None:
    """Raise for methods that need more than a model: a narrower network, or the topology of an earlier run."""
    if method.narrow:
        raise InputError(
            f"method {method.name!r} narrows the network of a recipe: build a narrower model yourself and train it "
            'with method="dense"'
        )
    if method.needs_topology and topology is None:
        raise InputError(
            f'method "{method.name}" needs the topology that an earlier run ended with: pass it as topology=, '
            "and start from the initial weights of that run"
        )


def check_owned(layers: Sequence[Layer], optimizer: Optimizer, *, frozen: bool) -> None:
    """Raise where a sparse layer is not trained by the optimizer; with `frozen`, layers without gradients may be."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [
        layer.name
        for layer in layers
        if id(layer.parameter) not in owned
        and layer.target < layer.size
        and not (frozen and not layer.parameter.requires_grad)
    ]
    if missing:
        raise InputError(
            f"the optimizer does not hold {', '.join(missing)}: pass it the model's parameters, or leave these dense"
        )


def topology_warnings(model: nn.Module, layers: Sequence[Layer], topology: Topology | None) -> list[str]:
    """Return warnings about layers that the topology lacks, that are empty, or that no path reaches."""
    found = []
    if topology is not None and (lacking := [layer for layer in layers if layer.part.parameter not in topology]):
        sizes = {layer.name: layer.size for layer in lacking}
        found.append(f"the topology has no mask for {listed(sizes)}: they stay dense")
    if empty := [layer.name for layer in layers if not layer.target]:
        found.append(f"no connection is left in {', '.join(empty)}: the sparsity is too high, the output is constant")
    elif cut := _cut_off(model, layers):
        found.append(f"no path of connections leads from the inputs to {', '.join(cut)}: the output is constant")
    return found


def _cut_off(model: nn.Module, layers: Sequence[Layer]) -> list[str]:
    """Return the layers that no path reaches; searched only where connections are so few that there may be some."""
    if not any(layer.active < sum(layer.shape[:2]) and not layer.mask.is_meta for layer in layers):
        return []
    return cut_off(model, {layer.name: layer.mask for layer in layers})


def unsupported_weights(model: nn.Module, method: Method) -> dict[str, int]:
    """Return the sizes of weights that a method cannot make sparse; structured methods reach fewer layers."""
    if method.gating is None:
        return {} if method.dense else left_dense(model)
    whole = {id(each) for module in model.modules() if isinstance(module, _UNGATED) for each in module.parameters()}
    weights = {name: each.numel() for name, each in sparse_parameters(model).items() if id(each) in whole}
    return left_dense(model) | weights


def unsupported_warnings(sizes: Mapping[str, int]) -> list[str]:
    """Return the warning about weights that stay dense because sparse training does not support them.

    >>> unsupported_warnings({"embedding.weight": 3072})
    ['sparse training does not reach embedding.weight (3,072 weights): these weights stay dense']
    """
    return [f"sparse training does not reach {listed(sizes)}: these weights stay dense"] if sizes else []


def warn(texts: Sequence[str], depth: int = 3) -> None:
    """Issue warnings at the line that called the sparsifier."""
    for text in texts:
        warnings.warn(text, stacklevel=depth)
