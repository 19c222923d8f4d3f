"""The rule of each operation. One without a rule is kept with all of its inputs, which the report notes."""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from rigl_compress.models.layer_resizing import BATCH_NORMS, RECURRENT
from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.attention_rules import ATTENTION, MATMUL
from rigl_compress.pruning.channel_facts import Fact, Grid, Source
from rigl_compress.pruning.channelwise_rules import BATCH_NORM, DROPOUT, EACH, GROUP_NORM, MEAN, PAD, POOL, PRELU
from rigl_compress.pruning.elementwise_rules import BINARY, COMBINE
from rigl_compress.pruning.glu_rules import GLU
from rigl_compress.pruning.grid_rule_table import CASTS, PRODUCTS, grid_rule
from rigl_compress.pruning.grid_rules import CAST, NORMS, SPLITTING_VIEW
from rigl_compress.pruning.multihead_rules import MULTIHEAD
from rigl_compress.pruning.norm_rules import NORM
from rigl_compress.pruning.picking_rules import GETITEM, PICKS
from rigl_compress.pruning.recurrent_rules import RECURRENT_LAYER
from rigl_compress.pruning.reshaping_rules import (
    CAT,
    EXPAND,
    EXPAND_AS,
    PERMUTE,
    SPLIT,
    SQUEEZE,
    TRANSPOSE,
    UNSQUEEZE,
    VIEW,
)
from rigl_compress.pruning.shuffling_rules import SHUFFLE_LAYERS, SHUFFLES
from rigl_compress.pruning.shuffling_views import rule_of_view
from rigl_compress.pruning.weighted_layer_rules import (
    CONVOLUTION_1D,
    CONVOLUTION_2D,
    CONVOLUTION_3D,
    EMBEDDING,
    LINEAR,
)

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Softplus, nn.Softsign, nn.LogSigmoid, nn.Identity),
    nn.modules.dropout._DropoutNd,
)
_POOLS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.Upsample),
    *(nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d),
)
_MODULES: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((nn.Linear,), LINEAR),
    ((nn.Conv1d, nn.ConvTranspose1d), CONVOLUTION_1D),
    ((nn.Conv2d, nn.ConvTranspose2d), CONVOLUTION_2D),
    ((nn.Conv3d, nn.ConvTranspose3d), CONVOLUTION_3D),
    (RECURRENT, RECURRENT_LAYER),
    ((nn.Embedding,), EMBEDDING),
    (BATCH_NORMS, BATCH_NORM),
    ((nn.GroupNorm,), GROUP_NORM),
    ((nn.PReLU,), PRELU),
    (_ACTIVATIONS, EACH),
    (_POOLS, POOL),
    ((nn.modules.padding._ConstantPadNd,), PAD),
    ((nn.Flatten,), VIEW),
    ((nn.GLU,), GLU),
    *SHUFFLE_LAYERS,
    (NORMS, NORM),
    ((nn.MultiheadAttention,), MULTIHEAD),
)
# Subclasses of torch layers in other modules (parametrized, quantized) compute something else.
_OURS = ("layer_resizing", "recurrent_layers", "resized_attention")
_PLAIN_LAYERS = ("torch.nn.modules", *(f"rigl_compress.models.{name}" for name in _OURS))
_FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys((F.relu, torch.relu, torch.relu_, F.relu6, F.silu, F.gelu, F.leaky_relu, F.elu, F.selu), EACH),
    **dict.fromkeys((F.hardswish, F.hardsigmoid, F.hardtanh, F.softplus, F.mish, F.logsigmoid, torch.clamp), EACH),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, torch.abs, torch.neg, operator.neg), EACH),
    **dict.fromkeys(("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "clamp", "abs", "neg"), EACH),
    **dict.fromkeys(("contiguous", "clone", "detach"), EACH),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d), DROPOUT),
    **dict.fromkeys((F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.interpolate), POOL),
    **dict.fromkeys((F.adaptive_avg_pool1d, F.adaptive_avg_pool2d), POOL),
    **dict.fromkeys((F.adaptive_max_pool1d, F.adaptive_max_pool2d), POOL),
    **dict.fromkeys((F.max_pool3d, F.avg_pool3d, F.adaptive_avg_pool3d, F.adaptive_max_pool3d), POOL),
    F.glu: GLU,
    **SHUFFLES,
    **PICKS,
    F.pad: PAD,
    **dict.fromkeys(("mean", torch.mean, "amax", torch.amax), MEAN),
    **dict.fromkeys(("flatten", torch.flatten), VIEW),
    **dict.fromkeys(("view", "reshape", torch.reshape, "unflatten", torch.unflatten), SPLITTING_VIEW),
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
    **dict.fromkeys((torch.pow, "pow", operator.pow, torch.erf, "erf"), EACH),
    **dict.fromkeys(CASTS, CAST),
    **dict.fromkeys(PRODUCTS, MATMUL),
    F.scaled_dot_product_attention: ATTENTION,
}


def rule_of(node: fx.Node, analysis: Analysis) -> Rule:
    """Return the rule of a node; a node without one is opaque."""
    if node.op == "placeholder":
        return _PLACEHOLDER
    if node.op == "output":
        return _OUTPUT
    if any(isinstance(analysis.fact(source), Grid) for source in node.all_input_nodes):
        return grid_rule(node, analysis) or _rule_of_layer(node, analysis)
    if (splitting := rule_of_view(node, analysis)) is not None:
        return splitting
    if node.op != "call_module":
        return _FUNCTIONS.get(node.target, _OPAQUE) if node.op != "get_attr" else _OPAQUE
    return _rule_of_module(analysis.module(node))


def _rule_of_layer(node: fx.Node, analysis: Analysis) -> Rule:
    """Return the rule of a layer with weights, which keeps what it cannot follow; others are opaque."""
    rule = _OPAQUE if node.op != "call_module" else _rule_of_module(analysis.module(node))
    return rule if rule in (LINEAR, CONVOLUTION_1D, CONVOLUTION_2D) else _OPAQUE


def _rule_of_module(module: nn.Module) -> Rule:
    plain = type(module).__module__.startswith(_PLAIN_LAYERS) and not _hooked(module)
    return next((rule for types, rule in _MODULES if plain and isinstance(module, types)), _OPAQUE)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _placeholder(node: fx.Node, analysis: Analysis) -> Fact:
    del analysis
    return Source.INPUT if node.meta["float"] else None


def _opaque(node: fx.Node, analysis: Analysis) -> Fact:
    name: Any = type(analysis.module(node)).__name__ if node.op == "call_module" else node.target
    hooked = node.op == "call_module" and _hooked(analysis.module(node))
    return analysis.mark_opaque(
        node, f"{getattr(name, '__name__', name)} {'with hooks ' if hooked else ''}is not supported"
    )


def _output(node: fx.Node, analysis: Analysis) -> Fact:
    """Pin and need all outputs of the network."""
    analysis.opaque.add(node)
    for source in node.all_input_nodes:
        analysis.keep(source)
    return None


def _nothing(node: fx.Node, analysis: Analysis) -> None:
    del node, analysis


_PLACEHOLDER = Rule(_placeholder, _nothing)
_OUTPUT = Rule(_output, _nothing, several=True)
_OPAQUE = Rule(_opaque, _nothing, several=True)
