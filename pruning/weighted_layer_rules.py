"""Rules for layers with weights: they create units, and use those of earlier layers."""

from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.layer_resizing import TRANSPOSED, by_output, size_of
from rigl_compress.pruning.analysis import Analysis, InputUse, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Grid, Source
from rigl_compress.pruning.traced_graph import shape

# Linear and convolution: the weight as a matrix [outputs, inputs]


def _weighted(dimensions: int) -> Rule:
    """Return the rule of a layer with so many spatial axes behind the channel axis."""
    behind = -1 - dimensions

    def forward(node: fx.Node, analysis: Analysis) -> Fact:
        if reason := analysis.unchangeable_reason(node):
            analysis.mark_opaque(node, reason)
            return pinned(node, analysis, behind, size_of(analysis.module(node))[1])
        x = source(node, analysis, behind)
        analysis.layers[str(node.target)] = node
        result = fresh(node, analysis, behind, _constants(node, analysis, x))
        _couple_groups(node, analysis, x, result)
        return result

    def backward(node: fx.Node, analysis: Analysis) -> None:
        connected, _ = _matrices(node, analysis)
        needed = connected[analysis.needed(node) & analysis.outputs(node).varies].any(dim=0)
        analysis.need(node.args[0], needed)
        analysis.input_uses[str(node.target)] = _input_use(node, analysis, source(node, analysis, behind), needed)

    return Rule(forward, backward)


def source(node: fx.Node, analysis: Analysis, axis: int) -> Channels | Source:
    """Return the input of a layer that reads channels along `axis`."""
    x = analysis.fact(node.args[0])
    if isinstance(x, Grid):
        return analysis.mark_opaque(node, "reads channels that lie along several axes")
    if isinstance(x, Channels) and x.axis != axis % len(shape(node.args[0])):
        return analysis.mark_opaque(node, "reads along another axis than that of the channels")
    return x if isinstance(x, Channels | Source) else Source.OPAQUE


def fresh(node: fx.Node, analysis: Analysis, axis: int, constant: Tensor) -> Channels:
    """Create units along an axis of a node's value."""
    return Channels(axis % len(shape(node)), analysis.units.fresh(len(constant)), constant).with_constant(constant)


def pinned(node: fx.Node, analysis: Analysis, axis: int, count: int) -> Channels:
    """Create units that are always kept."""
    result = fresh(node, analysis, axis, torch.full((count,), torch.nan, dtype=torch.float64))
    analysis.units.pin(result.units)
    return result


def _matrices(node: fx.Node, analysis: Analysis) -> tuple[Tensor, Tensor]:
    """Return connections and summed weights of every output and input channel, groups as a block diagonal."""
    both = (by_output(analysis.module(node), tensor) for tensor in (analysis.mask(node), analysis.weight(node)))
    mask, weight = (tensor.reshape(*tensor.shape[:2], -1) for tensor in both)
    connected, matrix = mask.any(dim=2), weight.sum(dim=2)
    groups = getattr(analysis.module(node), "groups", 1)
    if groups == 1:
        return connected, matrix
    diagonal: Any = torch.block_diag  # untyped
    return diagonal(*connected.double().chunk(groups)).bool(), diagonal(*matrix.chunk(groups))


def _constants(node: fx.Node, analysis: Analysis, x: Channels | Source) -> Tensor:
    """Return the constant outputs, those without varying inputs: bias plus constant inputs. nan for the others."""
    (connected, matrix), bias = _matrices(node, analysis), analysis.module(node).bias
    value = matrix.new_zeros(len(matrix)) if bias is None else bias.detach().cpu().double()  # type: ignore[operator]
    steady = torch.zeros(matrix.shape[1], dtype=torch.bool)
    if isinstance(x, Channels):
        steady = _foldable(node, analysis, x)
        value = value + matrix[:, steady] @ x.constant[steady]
    return torch.where(connected[:, ~steady].any(dim=1), torch.nan, value)


def _foldable(node: fx.Node, analysis: Analysis, x: Channels) -> Tensor:
    """Return which constant inputs can be folded into the bias: behind zero padding only zeros."""
    return x.constant == 0 if _zero_padded(analysis.module(node)) else ~x.varies


def _zero_padded(module: Any) -> bool:
    """Whether a constant input does not give a constant output: at a zero-padded border fewer copies contribute.

    So it is everywhere in a transposed convolution: how many contribute depends on the position, but with one copy.
    """
    if isinstance(module, TRANSPOSED):
        single = (*module.kernel_size, *module.stride)
        return any(size > 1 for size in single) or any((*module.padding, *module.output_padding))
    padding = getattr(module, "padding", "valid")
    if padding == "valid" or module.padding_mode != "zeros":
        return False
    return any(size > 1 for size in module.kernel_size) if padding == "same" else any(padding)


def _input_use(node: fx.Node, analysis: Analysis, x: Channels | Source, needed: Tensor) -> InputUse:
    none = torch.zeros_like(needed)
    if not isinstance(x, Channels):
        return InputUse(x, needed, needed, none)
    required = needed & ~_foldable(node, analysis, x)
    if getattr(analysis.module(node), "groups", 1) != 1:
        return InputUse(x, needed, required, none)
    return InputUse(x, needed, required & x.varies, required & ~x.varies)


def _couple_groups(node: fx.Node, analysis: Analysis, x: Channels | Source, result: Channels) -> None:
    """Couple the channels of each group: a grouped convolution can only lose whole groups."""
    groups = getattr(analysis.module(node), "groups", 1)
    if groups == 1:
        return
    if not isinstance(x, Channels):
        analysis.units.pin(result.units)
        return
    for inputs, outputs in zip(x.units.chunk(groups), result.units.chunk(groups), strict=True):
        analysis.units.couple_all(torch.cat([inputs, outputs]))


LINEAR, CONVOLUTION_1D, CONVOLUTION_2D, CONVOLUTION_3D = (_weighted(axes) for axes in range(4))


# Embedding: dimensions of the vectors are the channels


def _embedding(node: fx.Node, analysis: Analysis) -> Fact:
    module: Any = analysis.module(node)
    reason = analysis.unchangeable_reason(node) or (
        "rescales its vectors (max_norm)" if module.max_norm is not None else ""
    )
    if reason:
        analysis.mark_opaque(node, reason)
        return pinned(node, analysis, -1, module.embedding_dim)
    analysis.layers[str(node.target)] = node
    empty = ~analysis.mask(node).any(dim=0)
    return fresh(node, analysis, -1, torch.where(empty, 0.0, torch.nan).double())


def _no_need(node: fx.Node, analysis: Analysis) -> None:
    del node, analysis  # tokens are no channels


EMBEDDING = Rule(_embedding, _no_need)
