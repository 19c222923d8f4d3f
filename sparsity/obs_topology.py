"""One-shot pruning of a trained network: connections by second-order information, and weights that make up for them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rigl_compress.core.errors import InputError
from rigl_compress.core.wording import listed
from rigl_compress.models.fx_tracing import evaluating
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import Topology, connections
from rigl_compress.sparsity.initial_topology import warn
from rigl_compress.sparsity.layer_samples import norms_after, sampled_outputs, stream_inputs
from rigl_compress.sparsity.magnitude_topology import magnitude_topology
from rigl_compress.sparsity.second_order import Moments, surgeon
from rigl_compress.sparsity.sparsity_config import SparsityConfig

ROUNDING = 1e-10  # of the mean square, added to the variance: constant inputs have none, or one below 0 by rounding


def obs_topology(
    model: nn.Module, batches: Iterable[Any], config: SparsityConfig | None = None, **settings: Any
) -> Topology:
    """Prune a trained network in place without training, and return its topology.

    Layer after layer, weights are removed and the others changed so that the outputs of the layer, on inputs that come
    from the layers pruned before it, stay near those of the dense network (optimal brain surgeon). `batches` are some
    hundred training samples, as a data loader returns them; labels are not used. Takes a config, or its fields as
    keywords, as `Sparsifier` does. Linear layers and 2-D convolutions are pruned so, others by magnitude.

    >>> torch.manual_seed(0) and None
    >>> model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    >>> topology = obs_topology(model, [torch.randn(64, 8) for _ in range(4)], sparsity=0.5, distribution="uniform")
    >>> [layer.active for layer in topology.layers], int((model[2].weight != 0).sum())
    ([256, 64], 64)
    """
    config = config or SparsityConfig(**settings)
    given = list(batches)
    if not given:
        raise InputError("there is no batch to prune with: pass some hundred training samples")
    by_magnitude = magnitude_topology(model, config)
    with evaluating(model), torch.no_grad():
        masks = _prune_layers(model, _counts(model, config), given)
        topology = Topology({**by_magnitude, **masks})
        topology.apply_to(model)
    _report_others(model, [name for name, mask in by_magnitude.items() if name not in masks and not bool(mask.all())])
    return topology


def _counts(model: nn.Module, config: SparsityConfig) -> dict[str, int]:
    """Return the connections of sparse layers with a weight of their own: gates, queries and keys share theirs."""
    densities, sizes = config.densities(model), {n: each.numel() for n, each in sparse_parameters(model).items()}
    counts = {name: connections(densities[name], size) for name, size in sizes.items() if name in densities}
    return {name: count for name, count in counts.items() if count < sizes[name]}


def _prune_layers(model: nn.Module, counts: Mapping[str, int], batches: Sequence[Any]) -> dict[str, Tensor]:
    """Prune the layers whose products are seen, in the order of the network, and return their masks."""
    weights = {name: model.get_parameter(name) for name in counts}
    wanted, norms = sampled_outputs(model, weights, batches), norms_after(model, weights, batches[0])
    masks, few = {}, {}
    for name in list(wanted):
        sums = _Sums()
        stream_inputs(model, name, batches, wanted.pop(name), sums.add)
        sums.check(name)
        if sums.samples < sums.columns:
            few[name] = (sums.samples, sums.columns)
        masks[name] = _prune(_module(model, name), sums, counts[name], norms.get(name))
    _report_few(few)
    return masks


def _module(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


class _Sums:
    """Sums over a layer's samples, by group, of which one batch at a time is in memory: [groups, columns, …]."""

    def __init__(self) -> None:
        self.samples = 0
        self._x = self._y = self._xx = self._xy = torch.zeros((), dtype=torch.float64)

    def add(self, inputs: Tensor, outputs: Tensor) -> None:
        """Add samples of inputs and of the outputs that are wanted for them."""
        x, y = inputs.double(), outputs.double()
        self.samples += x.shape[-1]
        self._x, self._y = self._x + x.sum(-1, keepdim=True), self._y + y.sum(-1, keepdim=True)
        self._xx, self._xy = self._xx + x @ x.mT, self._xy + x @ y.mT

    @property
    def columns(self) -> int:
        """The inputs of a unit."""
        return self._xx.shape[-1]

    @property
    def means(self) -> tuple[Tensor, Tensor]:
        """The means of inputs and outputs."""
        return self._x / self.samples, self._y / self.samples

    @property
    def moments(self) -> list[Moments]:
        """The centred moments of each group."""
        x, y = self.means
        rounding = ROUNDING * self._xx.diagonal(dim1=1, dim2=2).mean() * torch.eye(self.columns).to(self._xx)
        gram, cross = self._xx - self.samples * x @ x.mT + rounding, self._xy - self.samples * x @ y.mT
        return [Moments(*each) for each in zip(gram, cross, strict=True)]

    def check(self, name: str) -> None:
        """Raise for samples that are not finite."""
        if not bool(torch.isfinite(self._xx).all() and torch.isfinite(self._xy).all()):
            raise InputError(
                f"the inputs or outputs of {name} are not finite on these batches: the network is damaged, or the "
                "batches are not what it was trained on"
            )


def _prune(module: nn.Module, sums: _Sums, count: int, norm: _BatchNorm | None) -> Tensor:
    """Prune one layer in place, group by group; let a bias take up what its mean output lost."""
    weight, (inputs, outputs), moments = module.get_parameter("weight"), sums.means, sums.moments
    blocks = weight.detach().double().view(len(moments), outputs.shape[1], -1)
    found = [
        surgeon(block, each, share)
        for block, each, share in zip(blocks, moments, _shares(count, len(moments)), strict=True)
    ]
    pruned = torch.stack([each for each, _ in found])
    weight.copy_(pruned.view(weight.shape))
    _shift(module, norm, (outputs - pruned @ inputs).reshape(-1))
    return torch.stack([mask for _, mask in found]).view(weight.shape)


def _shares(count: int, groups: int) -> list[int]:
    """Share out connections among groups, in nearly equal parts.

    >>> _shares(8, 3)
    [3, 2, 3]
    """
    ends = [round(count * group / groups) for group in range(groups + 1)]
    return [end - start for start, end in pairwise(ends)]


def _shift(module: nn.Module, norm: _BatchNorm | None, missing: Tensor) -> None:
    """Add the mean that outputs lost to the bias of the layer, or to that of the batch norm behind it."""
    if isinstance(module.bias, Tensor):
        module.bias.add_(missing)
    elif norm is not None and norm.running_mean is not None:
        norm.running_mean.sub_(missing)


def _report_few(layers: Mapping[str, tuple[int, int]]) -> None:
    if layers:
        name, (samples, columns) = next(iter(layers.items()))
        which = f"{len(layers)} layers, such as {name}" if len(layers) > 1 else name
        warn([f"too few samples for {which}: {samples} for {columns} inputs; pass more batches"], depth=5)


def _report_others(model: nn.Module, names: Sequence[str]) -> None:
    if names:
        sizes = {name: model.get_parameter(name).numel() for name in names}
        warn([f"pruned by magnitude, because their inputs cannot be sampled: {listed(sizes, most=4)}"], depth=4)
