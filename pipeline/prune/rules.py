"""What each operation does to channels: forwards to their units and constants, backwards to what is needed.

A rule is two functions. What has no rule is kept, and what feeds it, and the report says so.
"""

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rigl_compress.models.resize import BATCH_NORMS, CONVOLUTIONS
from rigl_compress.pipeline.prune.analysis import Analysis, is_tensor, shape
from rigl_compress.pipeline.prune.facts import Channels, Fact, Source, joined
from rigl_compress.pipeline.prune.weighted import CONVOLUTION, EMBEDDING, GRU, LINEAR, Rule


def _first(node: fx.Node) -> Any:
    return node.args[0] if node.args else next(iter(node.kwargs.values()), None)


# One channel at a time: activations, dropout, normalisation by stored statistics.


def _each_channel(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(_first(node))
    if not isinstance(x, Channels):
        return x
    if shape(node) != shape(_first(node)):
        return found.give_up(node, "changes the shape")
    value = _apply(node, found, x.constant)
    return x.with_constant(torch.where(x.varies, torch.nan, value))


def _apply(node: fx.Node, found: Analysis, constant: Tensor) -> Tensor:
    """Let the operation itself compute what becomes of a constant."""
    rest = node.args[1:]
    if node.op == "call_module":
        module = found.module(node)
        if isinstance(module, nn.PReLU):
            return torch.where(constant >= 0, constant, constant * module.weight.detach().cpu().double())
        return constant if isinstance(module, nn.modules.dropout._DropoutNd) else module(constant).detach()
    if node.op == "call_method":
        method: Any = getattr(constant, str(node.target))
        value: Tensor = method(*rest, **node.kwargs)
        return value
    if node.target in _DROPOUTS:
        return constant
    function: Any = node.target
    result: Tensor = function(constant, *rest, **{key: value for key, value in node.kwargs.items() if key != "inplace"})
    return result


def _pass_need(node: fx.Node, found: Analysis) -> None:
    if node in found.needs:
        found.need(_first(node), found.needed(node))


def _batch_norm(node: fx.Node, found: Analysis) -> Fact:
    x, module = found.fact(_first(node)), found.module(node)
    if not isinstance(x, Channels) or not isinstance(module, BATCH_NORMS):
        return x if x is None else found.give_up(node, "normalises values whose channels are not known")
    if module.running_mean is None or module.running_var is None or x.axis != 1 or found.shared(node):
        return found.give_up(node, "normalises by the batch, or is used twice")
    found.layers[str(node.target)] = node
    scale = (module.running_var.cpu().double() + module.eps).rsqrt()
    if module.affine:
        scale = scale * module.weight.detach().cpu().double()
    shift = module.bias.detach().cpu().double() if module.affine else 0.0
    return x.with_constant((x.constant - module.running_mean.cpu().double()) * scale + shift)


def _group_norm(node: fx.Node, found: Analysis) -> Fact:
    x, module = found.fact(_first(node)), found.module(node)
    own_group = isinstance(module, nn.GroupNorm) and module.num_groups == module.num_channels
    if not isinstance(x, Channels) or not own_group or x.axis != 1 or found.shared(node):
        return found.give_up(node, "normalises over several channels")
    found.layers[str(node.target)] = node
    shift: Any = module.bias
    bias = torch.zeros(len(x.units)) if shift is None else shift.detach().cpu()
    return x.with_constant(torch.where(x.varies, torch.nan, bias.double()))  # a constant minus its mean is 0


def _prelu(node: fx.Node, found: Analysis) -> Fact:
    x, module = found.fact(_first(node)), found.module(node)
    if isinstance(x, Channels) and module.num_parameters > 1:  # type: ignore[operator]
        if x.axis != 1 or found.shared(node):
            return found.give_up(node, "has slopes for other channels")
        found.layers[str(node.target)] = node
    return _each_channel(node, found)


# Space: pooling, means, resampling.


def _pool(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(_first(node))
    if not isinstance(x, Channels):
        return x if x in (None, Source.INPUT) else Source.OPAQUE
    if x.axis != 1 or not isinstance(node.meta["shape"], tuple):
        return found.give_up(node, "pools over channels, or gives positions too")
    if _averages_padding(node, found):
        return x.with_constant(torch.where(x.constant == 0, 0.0, torch.nan))  # at the border a mean with zeros
    return x


def _averages_padding(node: fx.Node, found: Analysis) -> bool:
    if node.op != "call_module":
        padding = node.args[3] if len(node.args) > 3 else node.kwargs.get("padding", 0)
        return bool(node.target in (F.avg_pool1d, F.avg_pool2d) and padding)
    module: Any = found.module(node)
    if not isinstance(module, nn.AvgPool1d | nn.AvgPool2d) or not module.count_include_pad:
        return False
    return any(module.padding) if isinstance(module.padding, tuple) else bool(module.padding)


def _mean(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(_first(node))
    if not isinstance(x, Channels):
        return Source.OPAQUE if x is Source.INPUT else x
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keepdim = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    rank = len(shape(_first(node)))
    over = None if dims is None else {int(dim) % rank for dim in (dims if isinstance(dims, tuple | list) else [dims])}
    if over is None or x.axis in over:
        return found.give_up(node, "takes a mean over channels")
    return x if keepdim else x.along(x.axis - sum(dim < x.axis for dim in over))


# Shape: flatten, view, permute, split, join.


def _flatten(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(_first(node))
    if not isinstance(x, Channels):
        return x
    before, after = shape(_first(node)), shape(node)
    if before == after:
        return x
    merged = before[: x.axis] == after[: x.axis] and len(after) == x.axis + 1 and prod(before[x.axis :]) == after[-1]
    if not merged:
        return found.give_up(node, "reshapes channels in a way that is not followed")
    flat = x.repeated(prod(before[x.axis + 1 :]), x.axis)
    _note_written_size(node, found)
    return flat


def _note_written_size(node: fx.Node, found: Analysis) -> None:
    """A view like `x.view(-1, 400)` has the number of channels in it, which will be another one."""
    if node.target not in ("view", "reshape", torch.reshape):
        return
    sizes: Any = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], tuple | list) else node.args[1:]
    if isinstance(sizes[-1], int) and sizes[-1] != -1:
        found.resizes[node] = sizes


def _permute(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(_first(node))
    if not isinstance(x, Channels):
        return x
    rank = len(shape(_first(node)))
    arguments: Any = node.args[1] if isinstance(node.args[1], tuple | list) else node.args[1:]
    if node.target in ("permute", torch.permute):
        return x.along([int(dim) % rank for dim in arguments].index(x.axis))
    one, other = (int(dim) % rank for dim in arguments)
    return x.along({one: other, other: one}.get(x.axis, x.axis))


def _split(node: fx.Node, found: Analysis) -> Fact:
    x = found.fact(_first(node))
    if not isinstance(x, Channels):
        return x
    dim: Any = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim", 0)
    parts: Any = node.args[1]
    if int(dim) % len(shape(_first(node))) != x.axis or isinstance(parts, fx.Node):
        return found.give_up(node, "splits along another axis than that of the channels")
    example = torch.arange(len(x.units))
    pieces = example.chunk(parts) if node.target in ("chunk", torch.chunk) else torch.split(example, parts)
    found.resizes[node] = pieces
    return tuple(x.picked(piece) for piece in pieces)


def _split_need(node: fx.Node, found: Analysis) -> None:
    source = _first(node)
    pieces = found.resizes.get(node)
    if pieces is not None and source in found.needs:
        for user in node.users:
            if user in found.needs:
                found.needs[source][pieces[user.args[1]]] |= found.needed(user)


def _getitem(node: fx.Node, found: Analysis) -> Fact:
    x, index = found.fact(_first(node)), node.args[1]
    if isinstance(x, tuple):
        return x[index] if isinstance(index, int) else found.give_up(node, "picks parts in a way that is not followed")
    if not isinstance(x, Channels):
        return x if is_tensor(node) else None
    steps: Any = index if isinstance(index, tuple) else (index,)
    whole = slice(None)
    followed = all(isinstance(step, int | slice) for step in steps) and (len(steps) <= x.axis or steps[x.axis] == whole)
    if not followed:
        return found.give_up(node, "picks channels in a way that is not followed")
    return x.along(x.axis - sum(isinstance(step, int) for step in steps[: x.axis]))


def _cat(node: fx.Node, found: Analysis) -> Fact:
    parts = [found.fact(part) for part in _first(node)]
    tracked = [part for part in parts if isinstance(part, Channels)]
    along: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    dim = along % len(shape(node))
    if len(tracked) < len(parts) or any(part.axis != tracked[0].axis for part in tracked):
        return found.give_up(node, "joins values whose channels are not all known")
    if dim == tracked[0].axis:
        return joined(tracked, dim)
    return _together(tracked, found, _same)


def _cat_need(node: fx.Node, found: Analysis) -> None:
    if node not in found.needs:
        return
    needed, begin = found.needed(node), 0
    for part in _first(node):
        channels = found.channels(part)
        if channels is None or len(channels.units) == len(needed):
            found.need(part, needed)
        else:
            found.need(part, needed[begin : begin + len(channels.units)])
            begin += len(channels.units)


# Two values: residual sums, gates.


def _same(one: Tensor, other: Tensor) -> Tensor:
    return torch.where(one == other, one, torch.nan)


def _product(one: Tensor, other: Tensor) -> Tensor:
    return torch.where((one == 0) | (other == 0), 0.0, one * other)  # nothing times anything is nothing


def _together(parts: list[Channels], found: Analysis, combine: Callable[[Tensor, Tensor], Tensor]) -> Channels:
    """Values combined channel by channel: their units stay or go together."""
    found.units.couple(*(part.units for part in parts))
    constant = parts[0].constant
    for part in parts[1:]:
        constant = combine(constant, part.constant)
    return parts[0].with_constant(constant)


_COMBINE: dict[Any, Callable[[Tensor, Tensor], Tensor]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), torch.add),
    **dict.fromkeys((operator.sub, torch.sub, "sub", "sub_"), torch.sub),
    **dict.fromkeys((operator.mul, operator.imul, torch.mul, "mul", "mul_"), _product),
}


def _binary(node: fx.Node, found: Analysis) -> Fact:
    if not is_tensor(node):
        return None  # arithmetic on sizes
    if node.kwargs or len(node.args) != 2:
        return found.give_up(node, "combines values in a way that is not followed")
    combine, sides = _COMBINE[node.target], [found.fact(argument) for argument in node.args]
    if not all(isinstance(argument, fx.Node) for argument in node.args):
        return _with_number(node, combine, next(side for side in sides if side is not None))
    one, other = sides
    if not isinstance(one, Channels) or not isinstance(other, Channels) or len(one.units) != len(other.units):
        return found.give_up(node, "combines values whose channels are not all known")
    if one.axis != other.axis or len({len(shape(argument)) for argument in node.args}) > 1:
        return found.give_up(node, "combines values whose channels lie along different axes")
    return _together([one, other], found, combine)


def _with_number(node: fx.Node, combine: Callable[[Tensor, Tensor], Tensor], x: Fact) -> Fact:
    if not isinstance(x, Channels):
        return x
    sides: list[Any] = [x.constant if isinstance(side, fx.Node) else side for side in node.args]
    one, other = (side if isinstance(side, Tensor) else torch.full_like(x.constant, side) for side in sides)
    return x.with_constant(combine(one, other))


def _binary_need(node: fx.Node, found: Analysis) -> None:
    if node not in found.needs:
        return
    needed = found.needed(node)
    for argument, other in zip(node.args, reversed(node.args), strict=True):
        silenced = found.channels(other) if _COMBINE[node.target] is _product else None
        heard = needed if silenced is None else needed & ~(silenced.constant == 0)
        found.need(argument, heard)


# The ends


def _placeholder(node: fx.Node, found: Analysis) -> Fact:
    del found
    return Source.INPUT if node.meta["float"] else None


def _opaque(node: fx.Node, found: Analysis) -> Fact:
    if not is_tensor(node) and node.op != "output":
        return None  # a size, a number: nothing is computed with channels
    return found.give_up(node, f"{_name(node, found)} is not followed")


def _name(node: fx.Node, found: Analysis) -> str:
    if node.op == "call_module":
        return type(found.module(node)).__name__
    return str(getattr(node.target, "__name__", node.target))


def _needs_all(node: fx.Node, found: Analysis) -> None:
    if is_tensor(node) or node.op == "output":
        for source in node.all_input_nodes:
            if source in found.needs:
                found.need(source, torch.ones_like(found.needs[source]))
            elif isinstance(found.fact(source), tuple):
                for user in source.users:
                    found.need(user, torch.tensor(True))


def _output(node: fx.Node, found: Analysis) -> Fact:
    for source in node.all_input_nodes:
        found.keep(source)
    return None


def _nothing(node: fx.Node, found: Analysis) -> None:
    del node, found


OPAQUE = Rule(_opaque, _needs_all)
EACH = Rule(_each_channel, _pass_need)

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.Hardswish, nn.Hardsigmoid),
    *(nn.Softplus, nn.Mish, nn.Identity, nn.Hardtanh, nn.modules.dropout._DropoutNd),
)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Upsample),
)
_MODULES: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((nn.Linear,), LINEAR),
    (CONVOLUTIONS, CONVOLUTION),
    ((nn.GRU,), GRU),
    ((nn.Embedding,), EMBEDDING),
    (BATCH_NORMS, Rule(_batch_norm, _pass_need)),
    ((nn.GroupNorm,), Rule(_group_norm, _pass_need)),
    ((nn.PReLU,), Rule(_prelu, _pass_need)),
    (_ACTIVATIONS, EACH),
    (_POOLS, Rule(_pool, _pass_need)),
    ((nn.Flatten,), Rule(_flatten, lambda node, found: _flat_need(node, found))),
)


def _flat_need(node: fx.Node, found: Analysis) -> None:
    source = _first(node)
    if node in found.needs and source in found.needs:
        needed = found.needed(node)
        found.need(source, needed.reshape(len(found.needs[source]), -1).any(dim=1))


_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d)
_FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys((F.relu, torch.relu, F.relu6, F.silu, F.gelu, torch.sigmoid, F.sigmoid, torch.tanh, F.tanh), EACH),
    **dict.fromkeys((F.leaky_relu, F.elu, F.hardswish, F.hardsigmoid, F.softplus, F.mish, *_DROPOUTS), EACH),
    **dict.fromkeys(("relu", "relu_", "sigmoid", "tanh", "contiguous", "clone", "detach"), EACH),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d), Rule(_pool, _pass_need)),
    **dict.fromkeys((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d), Rule(_pool, _pass_need)),
    **dict.fromkeys(("mean", torch.mean), Rule(_mean, _pass_need)),
    **dict.fromkeys(("flatten", torch.flatten, "view", "reshape", torch.reshape), Rule(_flatten, _flat_need)),
    **dict.fromkeys(("permute", torch.permute, "transpose", torch.transpose), Rule(_permute, _pass_need)),
    **dict.fromkeys(("chunk", torch.chunk, "split", torch.split), Rule(_split, _split_need)),
    **dict.fromkeys((torch.cat, torch.concat), Rule(_cat, _cat_need)),
    **dict.fromkeys(_COMBINE, Rule(_binary, _binary_need)),
    operator.getitem: Rule(_getitem, _pass_need),
}


def rule_of(node: fx.Node, found: Analysis) -> Rule:
    """Find the rule of a node; what has none is opaque."""
    if node.op == "placeholder":
        return Rule(_placeholder, _nothing)
    if node.op == "output":
        return Rule(_output, _needs_all)
    if node.op == "call_module":
        module = found.module(node)
        return next((rule for types, rule in _MODULES if isinstance(module, types)), OPAQUE)
    return _FUNCTIONS.get(node.target, OPAQUE) if node.op in ("call_function", "call_method") else OPAQUE
