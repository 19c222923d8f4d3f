"""The rule of `nn.MultiheadAttention`: heads go whose values are constant, or not read by the output projection."""

from typing import Any

import torch
from torch import Tensor, fx

from rigl_compress.models.fx_tracing import argument
from rigl_compress.models.prune_plan import LayerChange
from rigl_compress.models.resized_attention import head_rows
from rigl_compress.pruning.analysis import Analysis, Heads, Rule
from rigl_compress.pruning.channel_facts import Channels, Fact, Source
from rigl_compress.pruning.removal import Fold


def _multihead(node: fx.Node, analysis: Analysis) -> Fact:
    """Keep all inputs and outputs; what can change are the heads."""
    module: Any = analysis.module(node)
    for each in node.all_input_nodes:
        analysis.keep(each)
    if reason := analysis.unchangeable_reason(node) or _extra(module, analysis) or _weights_read(node):
        analysis.notes.append(f"{node.target}: {reason}")
    else:
        constant = _constants(node, analysis)
        heads = Heads(analysis.units.fresh(module.num_heads), constant)
        analysis.attentions[str(node.target)] = heads
        analysis.units.pin(heads.units[_live(node, analysis, constant)])
    outputs = argument(node, 0, "query").meta["shape"]
    return (_outputs(analysis, len(outputs) - 1, module.out_proj.out_features), Source.OPAQUE)


def _outputs(analysis: Analysis, axis: int, count: int) -> Channels:
    units = analysis.units.fresh(count)
    analysis.units.pin(units)
    return Channels(axis, units, torch.full((count,), torch.nan, dtype=torch.float64))


def _extra(module: Any, analysis: Analysis) -> str:
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        return "has keys and values of its own (add_bias_kv, add_zero_attn)"
    shared = any(analysis.owners[id(each)] > 1 for each in module.out_proj.parameters())
    plain = type(module.out_proj).__module__.startswith("torch.nn.modules")
    return "" if plain and not shared else "its output projection is computed, or shares its weights"


def _weights_read(node: fx.Node) -> str:
    """Return a reason if anything reads the attention weights, which are a mean over all heads."""
    if argument(node, 4, "need_weights", default=True) is False:
        return ""
    outputs_only = all(user.args[1:] == (0,) or (not user.users and user.op != "output") for user in node.users)
    return "" if outputs_only else "its attention weights are read"


def _constants(node: fx.Node, analysis: Analysis) -> Tensor:
    """Return the values [heads, features] that are constant, nan for others."""
    module: Any = analysis.module(node)
    mask, weight = (_value_rows(module, read, node) for read in (analysis.mask, analysis.weight))
    x = analysis.channels(argument(node, 2, "value"))
    steady = torch.zeros(weight.shape[1], dtype=torch.bool) if x is None else ~x.varies
    value = weight.new_zeros(len(weight)) if module.in_proj_bias is None else _bias(module)
    if x is not None:
        value = value + weight[:, steady] @ x.constant[steady]
    return torch.where(mask[:, ~steady].any(dim=1), torch.nan, value).reshape(module.num_heads, -1)


def _value_rows(module: Any, read: Any, node: fx.Node) -> Tensor:
    packed = module.in_proj_weight is not None
    tensor: Tensor = read(node, "in_proj_weight" if packed else "v_proj_weight")
    return tensor.chunk(3)[2] if packed else tensor


def _bias(module: Any) -> Tensor:
    bias: Tensor = module.in_proj_bias.detach().cpu().double()
    return bias.chunk(3)[2]


def _live(node: fx.Node, analysis: Analysis, constant: Tensor) -> Tensor:
    """Return which heads have a varying value that the output projection reads."""
    read = analysis.mask(node, "out_proj.weight").any(dim=0).reshape(constant.shape)
    return (read & constant.isnan()).any(dim=1)


def _multihead_need(node: fx.Node, analysis: Analysis) -> None:
    for source in node.all_input_nodes:
        analysis.need_all(source)


MULTIHEAD = Rule(_multihead, _multihead_need, several=True)


def head_change(layer: str, analysis: Analysis) -> LayerChange | None:
    """Return the change of an attention layer that loses heads: as inputs, the columns of its output projection."""
    module: Any = analysis.graph.get_submodule(layer)
    gone = _gone(layer, analysis)
    if not len(gone):
        return None
    return LayerChange(
        layer,
        inputs=module.num_heads * module.head_dim,
        outputs=module.num_heads,
        removed_inputs=tuple(head_rows(gone, module.head_dim).tolist()),
        removed_outputs=tuple(gone.tolist()),
        new_bias=module.out_proj.bias is None and _folds_something(module, head_fold(layer, analysis)),
        heads=True,
    )


def _folds_something(module: Any, fold: Fold | None) -> bool:
    return fold is not None and bool(fold.into_bias(module.out_proj.weight).any())


def head_fold(layer: str, analysis: Analysis) -> Fold | None:
    """Return the fold of the constant values of removed heads into the bias of the output projection."""
    heads, gone = analysis.attentions[layer], _gone(layer, analysis)
    size = heads.constant.shape[1]
    values = heads.constant[gone].flatten().nan_to_num(0)  # what is not read may vary
    folded = values != 0
    if not folded.any():
        return None
    return Fold(layer, tuple(head_rows(gone, size)[folded].tolist()), tuple(values[folded].tolist()))


def _gone(layer: str, analysis: Analysis) -> Tensor:
    return (~analysis.units.pinned(analysis.attentions[layer].units)).nonzero().flatten()
