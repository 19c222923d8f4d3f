"""Rules for operations on one channel at a time: activations, normalisation by stored statistics, pooling, means."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rigl_compress.models.resize import BATCH_NORMS
from rigl_compress.models.tracing import argument
from rigl_compress.pipeline.prune.analysis import Analysis, Rule
from rigl_compress.pipeline.prune.facts import Channels, Fact
from rigl_compress.pipeline.prune.graph import shape


def pass_need(node: fx.Node, found: Analysis) -> None:
    """What is needed of the result is needed of the first argument."""
    if found.tracked(node):
        found.need(node.args[0], found.needed(node))


# Activations and dropout: the operation itself computes what becomes of a constant.


def _each_channel(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    if len(node.all_input_nodes) > 1 or shape(node) != shape(node.args[0]):
        return found.give_up(node, "depends on other values, or changes the shape")
    return x.with_constant(torch.where(x.varies, torch.nan, _apply(node, found, x.constant.clone())))


def _apply(node: fx.Node, found: Analysis, constant: Tensor) -> Tensor:
    function: Any = found.module(node) if node.op == "call_module" else node.target
    if isinstance(function, nn.modules.dropout._DropoutNd):
        return constant
    if isinstance(function, nn.PReLU):
        return torch.where(constant >= 0, constant, constant * function.weight.detach().cpu().double())
    rest = () if node.op == "call_module" else node.args[1:]
    if node.op == "call_method":
        function = getattr(torch.Tensor, str(node.target))
    value: Tensor = function(constant, *rest, **node.kwargs)
    return value.detach()


def _functional_dropout(node: fx.Node, found: Analysis) -> Fact:
    """Nothing in evaluation mode; where the code says training=True, it is always at work."""
    x = found.fact(node.args[0])
    always = argument(node, 2, "training", default=True) is not False
    return x.unknown() if isinstance(x, Channels) and always else x


def _prelu(node: fx.Node, found: Analysis) -> Fact:
    x, module = found.fact(node.args[0]), found.module(node)
    if isinstance(x, Channels) and module.num_parameters > 1:  # type: ignore[operator]
        if why := found.fixed(node) or _elsewhere(x):
            return found.give_up(node, why)
        found.layers[str(node.target)] = node
    return _each_channel(node, found)


def _elsewhere(x: Channels) -> str:
    return "" if x.axis == 1 else "works along another axis than that of the channels"


# Normalisation


def _batch_norm(node: fx.Node, found: Analysis) -> Fact:
    x, module = found.fact(node.args[0]), found.module(node)
    assert isinstance(module, BATCH_NORMS)
    if not isinstance(x, Channels):
        return x
    if module.running_mean is None or module.running_var is None:
        return found.give_up(node, "normalises by the batch")
    if why := found.fixed(node) or _elsewhere(x):
        return found.give_up(node, why)
    found.layers[str(node.target)] = node
    scale = (module.running_var.cpu().double() + module.eps).rsqrt()
    return x.with_constant(_affine(module, (x.constant - module.running_mean.cpu().double()) * scale))


def _affine(module: Any, value: Tensor) -> Tensor:
    scaled = value if module.weight is None else value * module.weight.detach().cpu().double()
    return scaled if module.bias is None else scaled + module.bias.detach().cpu().double()


def _group_norm(node: fx.Node, found: Analysis) -> Fact:
    """Channels that are normalised together stay or go together; where all of them are constant, so is the result."""
    x, module = found.fact(node.args[0]), found.module(node)
    assert isinstance(module, nn.GroupNorm)
    if not isinstance(x, Channels):
        return x
    if why := found.fixed(node) or _elsewhere(x):
        return found.give_up(node, why)
    found.layers[str(node.target)] = node
    for members in x.units.chunk(module.num_groups):
        found.units.couple_all(members)
    groups = x.constant.reshape(module.num_groups, -1)
    variance, mean = torch.var_mean(groups, dim=1, correction=0, keepdim=True)
    return x.with_constant(_affine(module, ((groups - mean) * (variance + module.eps).rsqrt()).flatten()))


def _group_need(node: fx.Node, found: Analysis) -> None:
    if found.tracked(node):
        groups: Any = found.module(node).num_groups
        needed = found.needed(node).reshape(groups, -1)
        found.need(node.args[0], needed.any(dim=1, keepdim=True).expand_as(needed).flatten())


# Space: pooling, padding, means


def _pool(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    if node.meta["shape"] is None or x.axis >= len(shape(node)) - _dimensions(node, found):
        return found.give_up(node, "pools over channels, or gives positions too")
    return x.with_constant(torch.where(x.constant == 0, x.constant, torch.nan)) if _uneven(node, found) else x


def _dimensions(node: fx.Node, found: Analysis) -> int:
    """How many axes, counted from the last, are space."""
    function: Any = type(found.module(node)) if node.op == "call_module" else node.target
    name = getattr(function, "__name__", "")
    one = name.endswith("1d") or function in (F.max_pool1d, F.adaptive_max_pool1d)
    resampling = function in (nn.Upsample, F.interpolate)
    return len(shape(node.args[0])) - 2 if resampling else 1 if one else 2


def _uneven(node: fx.Node, found: Analysis) -> bool:
    """Whether the mean of a constant is another one: at a border with zeros, or where the divisor is given."""
    if node.op != "call_module":
        padded, divisor = argument(node, 3, "padding", default=0), argument(node, 6, "divisor_override")
        return node.target in (F.avg_pool1d, F.avg_pool2d) and (_any(padded) or divisor is not None)
    module: Any = found.module(node)
    if not isinstance(module, nn.AvgPool1d | nn.AvgPool2d):
        return False
    return (_any(module.padding) and module.count_include_pad) or getattr(module, "divisor_override", None) is not None


def _any(padding: Any) -> bool:
    return any(padding) if isinstance(padding, Iterable) else padding != 0


def _pad(node: fx.Node, found: Analysis) -> Fact:
    """Padding of space with a number: a constant stays one only if it is that number."""
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    module: Any = found.module(node) if node.op == "call_module" else None
    widths: Any = module.padding if module else argument(node, 1, "pad")
    value = (module.value if module else argument(node, 3, "value")) or 0
    if not isinstance(widths, tuple | list) or x.axis >= len(shape(node)) - len(widths) // 2:
        return found.give_up(node, "pads channels")
    if module is None and argument(node, 2, "mode", default="constant") != "constant":
        return x
    return x.with_constant(torch.where(x.constant == value, x.constant, torch.nan))


def _mean(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(node.args[0])
    if not isinstance(x, Channels):
        return x
    dims, keepdim = argument(node, 1, "dim"), argument(node, 2, "keepdim", default=False)
    rank = len(shape(node.args[0]))
    over = {dim % rank for dim in (dims if isinstance(dims, tuple | list) else [dims]) if isinstance(dim, int)}
    if not over or x.axis in over or len(node.all_input_nodes) > 1:
        return found.give_up(node, "takes a mean over channels")
    return x if keepdim else x.along(x.axis - sum(dim < x.axis for dim in over))


EACH = Rule(_each_channel, pass_need)
DROPOUT = Rule(_functional_dropout, pass_need)
PRELU = Rule(_prelu, pass_need)
BATCH_NORM = Rule(_batch_norm, pass_need)
GROUP_NORM = Rule(_group_norm, _group_need)
POOL = Rule(_pool, pass_need)
PAD = Rule(_pad, pass_need)
MEAN = Rule(_mean, pass_need)
