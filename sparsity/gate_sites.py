"""Where a network can have gates: the units that structured methods choose among."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, fx, nn

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.models.fx_tracing import traced
from rigl_compress.models.sparse_parameters import sparse_parameters

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Norm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(frozen=True)
class Site:
    """The units of one layer: the inputs of a linear one, the output channels of a convolution."""

    name: str  # of the layer's weight
    layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    norm: Norm | None = None  # directly after a convolution
    first: bool = False  # the units are the inputs of the network

    @property
    def of_inputs(self) -> bool:
        """Whether the gates stand before the layer."""
        return isinstance(self.layer, nn.Linear)

    @property
    def gated(self) -> nn.Module:
        """The module at whose input or output the gates stand."""
        return self.norm or self.layer

    @property
    def size(self) -> int:
        """The number of units."""
        return self.layer.in_features if isinstance(self.layer, nn.Linear) else self.layer.out_channels

    @property
    def weights(self) -> Tensor:
        """The weights as (units, weights of each), a view that can be written to."""
        weight = self.layer.weight
        return weight.t() if self.of_inputs else weight.flatten(1)

    def broadcast(self, gates: Tensor) -> Tensor:
        """Shape gates (samples, units) for the tensor that they multiply."""
        dimensions = 0 if self.of_inputs else self.layer.weight.dim() - 2
        return gates.reshape(*gates.shape, *([1] * dimensions))

    def fold(self, gates: Tensor) -> None:
        """Multiply the gates into the weights."""
        if self.norm is None:
            self.weights.mul_(gates[:, None])
            if not self.of_inputs and self.layer.bias is not None:
                self.layer.bias.mul_(gates)
        else:  # a convolution's own scale is normalised away: the gates act after it
            self.norm.weight.mul_(gates)
            self.norm.bias.mul_(gates)
            self.weights.mul_((gates != 0)[:, None])


def sites_of(model: nn.Module) -> list[Site]:
    """Return the units of a network, layer by layer. The outputs of the network are never among them.

    A linear layer that reads the channels of a convolution has no gates of its own: the channels have them. A layer
    that is not trained keeps its units.

    >>> [(site.name, site.size, site.first) for site in sites_of(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)))]
    [('0.weight', 8, True), ('1.weight', 4, False)]
    """
    modules, graph = dict(model.named_modules()), _graph(model)
    last = {id(layer) for node in graph.nodes if node.op == "output" for layer in _layers_before(node, modules)}
    sites = {}
    for node in graph.nodes:
        layer = modules.get(str(node.target)) if node.op == "call_module" else None
        name = f"{node.target}.weight"
        if isinstance(layer, nn.Linear):
            before = _layers_before(node, modules)
            if not any(isinstance(each, _CONVOLUTIONS) for each in before):
                sites[name] = Site(name, layer, first=not before)
        elif isinstance(layer, _CONVOLUTIONS) and layer.groups == 1 and id(layer) not in last:
            sites[name] = Site(name, layer, _norm_after(node, modules))
    trained = [name for name, parameter in sparse_parameters(model).items() if parameter.requires_grad]
    found = [sites[name] for name in trained if name in sites and sites[name].size > 1]
    if not found:
        raise InputError("the network has no linear layer and no convolution in training whose units could have gates")
    return found


def _graph(model: nn.Module) -> fx.Graph:
    try:
        return traced(model).graph
    except Exception as error:  # tracing foreign code can raise anything
        reason = first_line(error)
        raise InputError(f"structured methods need a network that can be traced into a graph: {reason}") from None


def _layers_before(node: fx.Node, modules: Mapping[str, nn.Module]) -> list[nn.Module]:
    """Return the layers with weights whose outputs a node reads, directly or through operations without weights."""
    found: list[nn.Module] = []
    waiting, seen = list(node.all_input_nodes), set[fx.Node]()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        layer = modules.get(str(source.target)) if source.op == "call_module" else None
        if isinstance(layer, (nn.Linear, *_CONVOLUTIONS)):
            found.append(layer)
        else:
            waiting += source.all_input_nodes
    return found


def _norm_after(node: fx.Node, modules: Mapping[str, nn.Module]) -> Norm | None:
    """Return the batch normalisation that is the only reader of a layer's output."""
    readers = list(node.users)
    norm = modules.get(str(readers[0].target)) if len(readers) == 1 and readers[0].op == "call_module" else None
    return norm if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) and norm.affine else None
