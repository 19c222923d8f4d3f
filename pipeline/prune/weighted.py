"""Rules for layers with weights: they make units of their own, and listen to those of others."""

from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.pipeline.prune.analysis import Analysis, Listening, Rule
from rigl_compress.pipeline.prune.facts import Channels, Fact, Source
from rigl_compress.pipeline.prune.graph import shape

# Linear and convolution: the weight as a matrix [outputs, inputs]


def _weighted(dimensions: int) -> Rule:
    """The rule of a layer with so many axes of space behind that of the channels."""
    behind = -1 - dimensions

    def forward(node: fx.Node, found: Analysis) -> Fact:
        if why := found.fixed(node):
            found.give_up(node, why)
            return pinned(node, found, behind, len(found.module(node).weight))  # type: ignore[arg-type]
        x = source(node, found, behind)
        found.layers[str(node.target)] = node
        result = fresh(node, found, behind, _constants(node, found, x))
        _couple_groups(node, found, x, result)
        return result

    def backward(node: fx.Node, found: Analysis) -> None:
        connected, _ = _matrices(node, found)
        needed = connected[found.needed(node) & found.outputs(node).varies].any(dim=0)
        found.need(node.args[0], needed)
        found.listening[str(node.target)] = _listening(node, found, source(node, found, behind), needed)

    return Rule(forward, backward)


def source(node: fx.Node, found: Analysis, axis: int) -> Channels | Source:
    """What goes into a layer that reads channels along `axis`."""
    x = found.fact(node.args[0])
    if isinstance(x, Channels) and x.axis != axis % len(shape(node.args[0])):
        return found.give_up(node, "reads along another axis than that of the channels")
    return x if isinstance(x, Channels | Source) else Source.OPAQUE


def fresh(node: fx.Node, found: Analysis, axis: int, constant: Tensor) -> Channels:
    """New units along an axis of a node's value."""
    return Channels(axis % len(shape(node)), found.units.fresh(len(constant)), constant).with_constant(constant)


def pinned(node: fx.Node, found: Analysis, axis: int, count: int) -> Channels:
    """New units that stay."""
    result = fresh(node, found, axis, torch.full((count,), torch.nan, dtype=torch.float64))
    found.units.pin(result.units)
    return result


def _matrices(node: fx.Node, found: Analysis) -> tuple[Tensor, Tensor]:
    """Connections and summed weights between every input and output channel, groups spread out."""
    mask, weight = (tensor.reshape(*tensor.shape[:2], -1) for tensor in (found.mask(node), found.weight(node)))
    connected, matrix = mask.any(dim=2), weight.sum(dim=2)
    groups = getattr(found.module(node), "groups", 1)
    if groups == 1:
        return connected, matrix
    spread: Any = torch.block_diag  # untyped
    return spread(*connected.double().chunk(groups)).bool(), spread(*matrix.chunk(groups))


def _constants(node: fx.Node, found: Analysis, x: Channels | Source) -> Tensor:
    """Give the outputs that no varying input reaches: their bias and what constant inputs add. nan for the others."""
    (connected, matrix), bias = _matrices(node, found), found.module(node).bias
    value = matrix.new_zeros(len(matrix)) if bias is None else bias.detach().cpu().double()  # type: ignore[operator]
    steady = torch.zeros(matrix.shape[1], dtype=torch.bool)
    if isinstance(x, Channels):
        steady = _foldable(node, found, x)
        value = value + matrix[:, steady] @ x.constant[steady]
    return torch.where(connected[:, ~steady].any(dim=1), torch.nan, value)


def _foldable(node: fx.Node, found: Analysis, x: Channels) -> Tensor:
    """Which constant inputs can go into the bias: behind zero padding only zeros, as the border sees fewer of them."""
    return x.constant == 0 if _zero_padded(found.module(node)) else ~x.varies


def _zero_padded(module: Any) -> bool:
    padding = getattr(module, "padding", "valid")
    if padding == "valid" or module.padding_mode != "zeros":
        return False
    return any(size > 1 for size in module.kernel_size) if padding == "same" else any(padding)


def _listening(node: fx.Node, found: Analysis, x: Channels | Source, needed: Tensor) -> Listening:
    nobody = torch.zeros_like(needed)
    if not isinstance(x, Channels):
        return Listening(x, needed, needed, nobody)
    missed = needed & ~_foldable(node, found, x)
    if getattr(found.module(node), "groups", 1) != 1:
        return Listening(x, needed, missed, nobody)
    return Listening(x, needed, missed & x.varies, missed & ~x.varies)


def _couple_groups(node: fx.Node, found: Analysis, x: Channels | Source, result: Channels) -> None:
    """Channels of a group stay or go together: a grouped convolution can only lose whole groups."""
    groups = getattr(found.module(node), "groups", 1)
    if groups == 1:
        return
    if not isinstance(x, Channels):
        found.units.pin(result.units)
        return
    for inputs, outputs in zip(x.units.chunk(groups), result.units.chunk(groups), strict=True):
        found.units.couple_all(torch.cat([inputs, outputs]))


LINEAR, CONVOLUTION_1D, CONVOLUTION_2D = _weighted(0), _weighted(1), _weighted(2)


# Embedding: dimensions of the vectors are the channels


def _embedding(node: fx.Node, found: Analysis) -> Fact:
    module: Any = found.module(node)
    why = found.fixed(node) or ("scales its vectors by their length" if module.max_norm is not None else "")
    if why:
        found.give_up(node, why)
        return pinned(node, found, -1, module.embedding_dim)
    found.layers[str(node.target)] = node
    empty = ~found.mask(node).any(dim=0)
    return fresh(node, found, -1, torch.where(empty, 0.0, torch.nan).double())


def _no_need(node: fx.Node, found: Analysis) -> None:
    del node, found  # tokens are no channels


EMBEDDING = Rule(_embedding, _no_need)
