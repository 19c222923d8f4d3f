"""What a sparsifier starts from, and what it says about it once."""

import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.models.errors import InputError
from rigl_compress.models.layers import left_dense, sparse_layers, sparse_parameters
from rigl_compress.models.topology import Topology, connections
from rigl_compress.models.wording import listed
from rigl_compress.pipeline.train.config import SparsityConfig
from rigl_compress.pipeline.train.layer import Layer
from rigl_compress.pipeline.train.methods import Method
from rigl_compress.pipeline.train.paths import cut_off


def first_layers(model: nn.Module, config: SparsityConfig, seed: int, topology: Topology | None) -> list[Layer]:
    """Give the layers of a model with their first connections: drawn by the method, or as a topology has them."""
    if topology is not None:
        topology.check_fits(model)
    method, densities, parameters = config.rule, config.densities(model), sparse_parameters(model)
    layers = []
    for name, part in sparse_layers(model).items():
        layer = Layer.full(name, parameters[part.parameter], part, 0)
        layer.target = connections(densities[name], layer.size)
        if topology is None:
            _draw(layer, method, seed)
        else:
            given = topology.get(part.parameter)
            _take(layer, None if given is None else part.of(given))
        layers.append(layer)
    return layers


@torch.no_grad()
def _draw(layer: Layer, method: Method, seed: int) -> None:
    if method.start is not None and layer.target < layer.size:
        layer.settle_at(method.start(layer.view(method.options, seed, -1), layer.target))


def _take(layer: Layer, mask: Tensor | None) -> None:
    if mask is not None:
        layer.settle_at(places_of(mask.to(layer.mask.device)))
    layer.target = layer.active


def places_of(mask: Tensor) -> Tensor:
    """Give the flat positions where a mask is True.

    >>> places_of(torch.tensor([[False, True], [True, False]])).tolist()
    [1, 2]
    """
    return mask.reshape(-1).nonzero().squeeze(1)


def check_method(method: Method, topology: Topology | None) -> None:
    """Raise for methods that need more than a model: a narrower network, an earlier run."""
    if method.narrow:
        raise InputError(
            f"method {method.name!r} narrows the network of a recipe: build a narrower model yourself and train it "
            'with method="dense"'
        )
    if method.name == "lottery" and topology is None:
        raise InputError(
            'method "lottery" needs the topology that an earlier run ended with: give it as topology=, and start from '
            "the initial weights of that run"
        )


def check_owned(layers: Sequence[Layer], optimizer: Optimizer) -> None:
    """Raise where a sparse layer is not trained by the optimizer."""
    owned = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    missing = [layer.name for layer in layers if id(layer.parameter) not in owned and layer.target < layer.size]
    if missing:
        raise InputError(
            f"the optimizer does not hold {', '.join(missing)}: give it the model's parameters, or leave these dense"
        )


def remarks(model: nn.Module, layers: Sequence[Layer], topology: Topology | None) -> list[str]:
    """Say what people may not expect: layers that the topology lacks, that are empty, or that nothing reaches."""
    said = []
    if topology is not None and (lacking := [layer for layer in layers if layer.part.parameter not in topology]):
        sizes = {layer.name: layer.size for layer in lacking}
        said.append(f"the topology has no mask for {listed(sizes)}: they stay dense")
    if empty := [layer.name for layer in layers if not layer.target]:
        said.append(f"no connection is left in {', '.join(empty)}: the sparsity is too high, the output is constant")
    elif cut := _cut_off(model, layers):
        said.append(f"no path of connections leads from the inputs to {', '.join(cut)}: the output is constant")
    return said


def _cut_off(model: nn.Module, layers: Sequence[Layer]) -> list[str]:
    """Look for layers that nothing reaches, where connections are so few that there may be some."""
    if not any(layer.active < sum(layer.mask.shape[:2]) and not layer.mask.is_meta for layer in layers):
        return []
    return cut_off(model, {layer.name: layer.mask for layer in layers})


def unreached(model: nn.Module, method: Method) -> dict[str, int]:
    """Give the weights that a method leaves dense because it does not know them; recurrent layers have no gates."""
    if method.gating is None:
        return {} if method.dense else left_dense(model)
    recurrent = {
        id(each) for module in model.modules() if isinstance(module, nn.RNNBase) for each in module.parameters()
    }
    weights = {name: each.numel() for name, each in sparse_parameters(model).items() if id(each) in recurrent}
    return left_dense(model) | weights


def stay_dense(sizes: Mapping[str, int]) -> list[str]:
    """Say which weights stay dense though nobody asked for it.

    >>> stay_dense({"attention.in_proj_weight": 3072})
    ['sparse training does not reach attention.in_proj_weight (3,072 weights): these weights stay dense']
    """
    return [f"sparse training does not reach {listed(sizes)}: these weights stay dense"] if sizes else []


def warn(texts: Sequence[str], depth: int = 3) -> None:
    """Say each of the texts once, at the line that called the sparsifier."""
    for text in texts:
        warnings.warn(text, stacklevel=depth)
