"""Rules for operations on one channel at a time: activations, normalisation by stored statistics, pooling, means."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rigl_compress.models.fx_tracing import argument
from rigl_compress.models.layer_resizing import BATCH_NORMS
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Tracked
from rigl_compress.pruning.traced_graph import shape


def pass_need(node: fx.Node, analysis: Analysis) -> None:
    """Pass what is needed of the result on to the first argument."""
    if analysis.tracked(node):
        analysis.need(node.args[0], analysis.needed(node))


# Activations and dropout: a constant is mapped by the operation itself.


def _per_channel(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Tracked):
        return x
    if len(node.all_input_nodes) > 1 or shape(node) != shape(node.args[0]):
        return analysis.mark_opaque(node, "depends on other values, or changes the shape")
    return x.with_constant(torch.where(x.varies, torch.nan, _apply(node, analysis, x.constant.clone())))


def _apply(node: fx.Node, analysis: Analysis, constant: Tensor) -> Tensor:
    function: Any = analysis.module(node) if node.op == "call_module" else node.target
    if isinstance(function, nn.modules.dropout._DropoutNd):
        return constant
    if isinstance(function, nn.PReLU):
        return torch.where(constant >= 0, constant, constant * function.weight.detach().cpu().double())
    rest = () if node.op == "call_module" else node.args[1:]
    if node.op == "call_method":
        function = getattr(torch.Tensor, str(node.target))
    value: Tensor = function(constant, *rest, **node.kwargs)
    return value.detach()


def _functional_dropout(node: fx.Node, analysis: Analysis) -> Fact:
    """Dropout does nothing in evaluation mode, unless the code passes training=True."""
    x = analysis.fact(node.args[0])
    always = argument(node, 2, "training", default=True) is not False
    return x.unknown() if isinstance(x, Tracked) and always else x


def _prelu(node: fx.Node, analysis: Analysis) -> Fact:
    x, module = analysis.fact(node.args[0]), analysis.module(node)
    if isinstance(x, Channels) and module.num_parameters > 1:  # type: ignore[operator]
        if reason := analysis.unchangeable_reason(node) or _other_axis(x):
            return analysis.mark_opaque(node, reason)
        analysis.layers[str(node.target)] = node
    return _per_channel(node, analysis)


def _other_axis(x: Channels) -> str:
    return "" if x.axis == 1 else "works along another axis than that of the channels"


# Normalisation


def _batch_norm(node: fx.Node, analysis: Analysis) -> Fact:
    x, module = analysis.fact(node.args[0]), analysis.module(node)
    assert isinstance(module, BATCH_NORMS)
    if not isinstance(x, Channels):
        return x
    if module.running_mean is None or module.running_var is None:
        return analysis.mark_opaque(node, "normalises by the batch")
    if reason := analysis.unchangeable_reason(node) or _other_axis(x):
        return analysis.mark_opaque(node, reason)
    analysis.layers[str(node.target)] = node
    scale = (module.running_var.cpu().double() + module.eps).rsqrt()
    return x.with_constant(_affine(module, (x.constant - module.running_mean.cpu().double()) * scale))


def _affine(module: Any, value: Tensor) -> Tensor:
    scaled = value if module.weight is None else value * module.weight.detach().cpu().double()
    return scaled if module.bias is None else scaled + module.bias.detach().cpu().double()


def _group_norm(node: fx.Node, analysis: Analysis) -> Fact:
    """Couple channels that are normalised together; where all of them are constant, so is the result."""
    x, module = analysis.fact(node.args[0]), analysis.module(node)
    assert isinstance(module, nn.GroupNorm)
    if not isinstance(x, Channels):
        return x
    if reason := analysis.unchangeable_reason(node) or _other_axis(x):
        return analysis.mark_opaque(node, reason)
    analysis.layers[str(node.target)] = node
    for members in x.units.chunk(module.num_groups):
        analysis.units.couple_all(members)
    groups = x.constant.reshape(module.num_groups, -1)
    variance, mean = torch.var_mean(groups, dim=1, correction=0, keepdim=True)
    return x.with_constant(_affine(module, ((groups - mean) * (variance + module.eps).rsqrt()).flatten()))


def _group_need(node: fx.Node, analysis: Analysis) -> None:
    if analysis.tracked(node):
        groups: Any = analysis.module(node).num_groups
        needed = analysis.needed(node).reshape(groups, -1)
        analysis.need(node.args[0], needed.any(dim=1, keepdim=True).expand_as(needed).flatten())


# Spatial operations: pooling, padding, means


def _pool(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    if node.meta["shape"] is None or x.axis >= len(shape(node)) - _dimensions(node, analysis):
        return analysis.mark_opaque(node, "pools over channels, or returns indices too")
    return (
        x.with_constant(torch.where(x.constant == 0, x.constant, torch.nan))
        if _changes_constants(node, analysis)
        else x
    )


def _dimensions(node: fx.Node, analysis: Analysis) -> int:
    """Return how many axes, counted from the last, are spatial."""
    function: Any = type(analysis.module(node)) if node.op == "call_module" else node.target
    name = getattr(function, "__name__", "")
    one = name.endswith("1d") or function in (F.max_pool1d, F.adaptive_max_pool1d)
    three = name.endswith("3d") or function in (F.max_pool3d, F.adaptive_max_pool3d)
    resampling = function in (nn.Upsample, F.interpolate)
    return len(shape(node.args[0])) - 2 if resampling else 1 if one else 3 if three else 2


def _changes_constants(node: fx.Node, analysis: Analysis) -> bool:
    """Whether pooling changes constants: at a zero-padded border, or by divisor_override."""
    if node.op != "call_module":
        padded, divisor = argument(node, 3, "padding", default=0), argument(node, 6, "divisor_override")
        return node.target in (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d) and (_any(padded) or divisor is not None)
    module: Any = analysis.module(node)
    if not isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d):
        return False
    return (_any(module.padding) and module.count_include_pad) or getattr(module, "divisor_override", None) is not None


def _any(padding: Any) -> bool:
    return any(padding) if isinstance(padding, Iterable) else padding != 0


def _pad(node: fx.Node, analysis: Analysis) -> Fact:
    """Spatial padding with a number: a constant channel stays constant only if it equals that number."""
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    module: Any = analysis.module(node) if node.op == "call_module" else None
    widths: Any = module.padding if module else argument(node, 1, "pad")
    value = (module.value if module else argument(node, 3, "value")) or 0
    if not isinstance(widths, tuple | list) or x.axis >= len(shape(node)) - len(widths) // 2:
        return analysis.mark_opaque(node, "pads channels")
    if module is None and argument(node, 2, "mode", default="constant") != "constant":
        return x
    return x.with_constant(torch.where(x.constant == value, x.constant, torch.nan))


def _mean(node: fx.Node, analysis: Analysis) -> Fact:
    x = analysis.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    dims, keepdim = argument(node, 1, "dim"), argument(node, 2, "keepdim", default=False)
    rank = len(shape(node.args[0]))
    over = {dim % rank for dim in (dims if isinstance(dims, tuple | list) else [dims]) if isinstance(dim, int)}
    if not over or x.axis in over or len(node.all_input_nodes) > 1:
        return analysis.mark_opaque(node, "takes a mean over channels")
    return x if keepdim else x.along(x.axis - sum(dim < x.axis for dim in over))


EACH = Rule(_per_channel, pass_need)
DROPOUT = Rule(_functional_dropout, pass_need)
PRELU = Rule(_prelu, pass_need)
BATCH_NORM = Rule(_batch_norm, pass_need)
GROUP_NORM = Rule(_group_norm, _group_need)
POOL = Rule(_pool, pass_need)
PAD = Rule(_pad, pass_need)
MEAN = Rule(_mean, pass_need)
