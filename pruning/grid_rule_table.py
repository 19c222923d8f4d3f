"""The rule of each operation on values whose channels lie along several axes."""

import operator
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.attention_rules import ATTENTION, MATMUL
from rigl_compress.pruning.channelwise_rules import EACH
from rigl_compress.pruning.elementwise_rules import COMBINE
from rigl_compress.pruning.grid_rules import (
    CAST,
    GRID_BINARY,
    GRID_DROPOUT,
    GRID_FILL,
    GRID_JOIN,
    HEAD_NORM,
    MOVE,
    NORMS,
    SOFTMAX,
)

CASTS = ("to", "type", "float", "double", "half", "bfloat16")
PRODUCTS = (operator.matmul, torch.matmul, "matmul", torch.bmm, "bmm")
_COPIES = ("contiguous", "clone", "detach")
_METHODS = (
    *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims", "movedim"),
    *("unsqueeze", "squeeze", "expand", "unbind", "chunk", "split", "select", "narrow"),
)
_MOVES = (
    *_METHODS,
    *(getattr(torch, name) for name in _METHODS if hasattr(torch, name)),
    *(operator.getitem, getattr),
)
_FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys(_MOVES, MOVE),
    **dict.fromkeys((*CASTS, *_COPIES), CAST),
    **dict.fromkeys(COMBINE, GRID_BINARY),
    **dict.fromkeys(("masked_fill", torch.masked_fill, torch.where), GRID_FILL),
    **dict.fromkeys((F.softmax, torch.softmax, "softmax"), SOFTMAX),
    **dict.fromkeys((F.relu, torch.relu, "relu", F.gelu, F.silu, torch.tanh, "tanh", "neg", operator.neg), EACH),
    **dict.fromkeys(PRODUCTS, MATMUL),
    **dict.fromkeys((torch.cat, torch.concat), GRID_JOIN),
    F.dropout: GRID_DROPOUT,
    F.scaled_dot_product_attention: ATTENTION,
}
_MODULES: tuple[tuple[tuple[type[nn.Module], ...], Rule], ...] = (
    ((nn.Dropout,), GRID_DROPOUT),
    ((nn.Identity,), CAST),
    ((nn.Softmax,), SOFTMAX),
    ((nn.Flatten, nn.Unflatten), MOVE),
    (NORMS, HEAD_NORM),
)


def grid_rule(node: fx.Node, analysis: Analysis) -> Rule | None:
    """Return the rule of a node that reads a grid, or None."""
    if node.op != "call_module":
        return _FUNCTIONS.get(node.target)
    module = analysis.module(node)
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return next((rule for types, rule in _MODULES if type(module) in types), None)
