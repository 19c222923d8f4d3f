"""Which rule an operation has. What has none is kept, and what feeds it, and the report says so."""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from rigl_compress.models.resize import BATCH_NORMS
from rigl_compress.pipeline.prune.analysis import Analysis, Rule
from rigl_compress.pipeline.prune.channelwise import BATCH_NORM, DROPOUT, EACH, GROUP_NORM, MEAN, PAD, POOL, PRELU
from rigl_compress.pipeline.prune.combining import BINARY, COMBINE
from rigl_compress.pipeline.prune.facts import Fact, Source
from rigl_compress.pipeline.prune.recurrent import GRU
from rigl_compress.pipeline.prune.reshaping import (
    CAT,
    EXPAND,
    EXPAND_AS,
    GETITEM,
    PERMUTE,
    SPLIT,
    SQUEEZE,
    TRANSPOSE,
    UNSQUEEZE,
    VIEW,
)
from rigl_compress.pipeline.prune.weighted import CONVOLUTION_1D, CONVOLUTION_2D, EMBEDDING, LINEAR

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Identity),
    nn.modules.dropout._DropoutNd,
)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Upsample),
)
_MODULES: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((nn.Linear,), LINEAR),
    ((nn.Conv1d,), CONVOLUTION_1D),
    ((nn.Conv2d,), CONVOLUTION_2D),
    ((nn.GRU,), GRU),
    ((nn.Embedding,), EMBEDDING),
    (BATCH_NORMS, BATCH_NORM),
    ((nn.GroupNorm,), GROUP_NORM),
    ((nn.PReLU,), PRELU),
    (_ACTIVATIONS, EACH),
    (_POOLS, POOL),
    ((nn.modules.padding._ConstantPadNd,), PAD),
    ((nn.Flatten,), VIEW),
)
# What torch derives from its own layers elsewhere (parametrized, quantized) computes something else.
_PLAIN_LAYERS = ("torch.nn.modules", "rigl_compress.models.resize")
_FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, F.relu6, F.silu, F.gelu, F.leaky_relu, F.elu, F.selu), EACH),
    **dict.fromkeys((F.hardswish, F.hardsigmoid, F.hardtanh, F.softplus, F.mish, F.logsigmoid, torch.clamp), EACH),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, torch.abs, torch.neg, operator.neg), EACH),
    **dict.fromkeys(("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "clamp", "abs", "neg"), EACH),
    **dict.fromkeys(("contiguous", "clone", "detach"), EACH),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d), DROPOUT),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.interpolate), POOL),
    **dict.fromkeys((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d), POOL),
    **dict.fromkeys((F.adaptive_max_pool1d, F.adaptive_max_pool2d), POOL),
    F.pad: PAD,
    **dict.fromkeys(("mean", torch.mean, "amax", torch.amax), MEAN),
    **dict.fromkeys(("flatten", torch.flatten, "view", "reshape", torch.reshape), VIEW),
    "expand": EXPAND,
    "expand_as": EXPAND_AS,
    **dict.fromkeys(("permute", torch.permute), PERMUTE),
    **dict.fromkeys(("transpose", torch.transpose), TRANSPOSE),
    **dict.fromkeys(("squeeze", torch.squeeze), SQUEEZE),
    **dict.fromkeys(("unsqueeze", torch.unsqueeze), UNSQUEEZE),
    **dict.fromkeys(("chunk", torch.chunk, "split", torch.split), SPLIT),
    **dict.fromkeys((torch.cat, torch.concat), CAT),
    **dict.fromkeys(COMBINE, BINARY),
    operator.getitem: GETITEM,
}


def rule_of(node: fx.Node, found: Analysis) -> Rule:
    """Find the rule of a node; what has none is opaque."""
    if node.op == "placeholder":
        return _PLACEHOLDER
    if node.op == "output":
        return _OUTPUT
    if node.op != "call_module":
        return _FUNCTIONS.get(node.target, _OPAQUE) if node.op != "get_attr" else _OPAQUE
    module = found.module(node)
    plain = type(module).__module__.startswith(_PLAIN_LAYERS) and not _hooked(module)
    return next((rule for types, rule in _MODULES if plain and isinstance(module, types)), _OPAQUE)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _placeholder(node: fx.Node, found: Analysis) -> Fact:
    del found
    return Source.INPUT if node.meta["float"] else None


def _opaque(node: fx.Node, found: Analysis) -> Fact:
    name = type(found.module(node)).__name__ if node.op == "call_module" else node.target
    hooked = node.op == "call_module" and _hooked(found.module(node))
    return found.give_up(node, f"{getattr(name, '__name__', name)} {'with hooks ' if hooked else ''}is not followed")


def _output(node: fx.Node, found: Analysis) -> Fact:
    """All that comes out stays, and is needed."""
    found.blind.add(node)
    for source in node.all_input_nodes:
        found.keep(source)
    return None


def _nothing(node: fx.Node, found: Analysis) -> None:
    del node, found


_PLACEHOLDER = Rule(_placeholder, _nothing)
_OUTPUT = Rule(_output, _nothing, several=True)
_OPAQUE = Rule(_opaque, _nothing, several=True)
