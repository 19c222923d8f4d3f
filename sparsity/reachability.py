"""Layers that no path of active connections reaches from the network's inputs."""

from collections.abc import Mapping

import torch
from torch import Tensor, fx, nn

from rigl_compress.models.fx_tracing import evaluating, graph_of

_Weighted = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
# What maps every channel to itself. Of all other operations only this is assumed: no input, no output.
_CHANNELWISE = {
    *("Identity", "Flatten", "Dropout", "Dropout2d", "BatchNorm1d", "BatchNorm2d", "MaxPool2d", "AvgPool2d"),
    *("AdaptiveAvgPool2d", "ReLU", "ReLU6", "LeakyReLU", "ELU", "GELU", "SiLU", "Hardswish", "Sigmoid", "Tanh"),
    *("relu", "relu_", "relu6", "gelu", "silu", "sigmoid", "tanh", "flatten", "dropout", "max_pool2d", "avg_pool2d"),
    *("adaptive_avg_pool2d", "add", "iadd"),
}


def cut_off(model: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Return the weights whose outputs do not depend on the network's inputs. Where that is unknown, they do.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> first, second = torch.tensor([[1, 0], [0, 0]]).bool(), torch.tensor([[0, 1]]).bool()
    >>> cut_off(model, {"0.weight": first, "2.weight": second})
    ['2.weight']
    """
    try:
        with evaluating(model):
            nodes = graph_of(model).nodes
    except Exception:  # tracing foreign code can raise anything
        return []
    modules, reached = dict(model.named_modules()), dict[fx.Node, Tensor | None]()
    cut: dict[str, None] = {}
    for node in nodes:
        layer = modules.get(str(node.target)) if node.op == "call_module" else None
        mask = masks.get(f"{node.target}.weight")
        if isinstance(layer, _Weighted) and mask is not None:
            reached[node] = outputs = _outputs(layer, mask, _combined([reached[each] for each in node.all_input_nodes]))
            if not outputs.any():
                cut[f"{node.target}.weight"] = None
        else:
            known = _combined([reached[each] for each in node.all_input_nodes])
            reached[node] = known if _kind(node, layer) in _CHANNELWISE else _mixed(known)
    return [*cut]


def _kind(node: fx.Node, module: nn.Module | None) -> str:
    if module is not None:
        return type(module).__name__
    return str(getattr(node.target, "__name__", node.target))


def _mixed(known: Tensor | None) -> Tensor | None:
    return None if known is None or known.any() else torch.zeros(1, dtype=torch.bool)


def _combined(sources: list[Tensor | None]) -> Tensor | None:
    """Join the channels of several values; None: all may depend on the inputs."""
    known = [each for each in sources if each is not None]
    if len(known) < len(sources) or not known:
        return None
    if any(len(each) != len(known[0]) for each in known):  # concatenated, perhaps
        return _mixed(torch.cat(known))
    return torch.stack(known).any(dim=0)


def _outputs(layer: nn.Module, mask: Tensor, inputs: Tensor | None) -> Tensor:
    """Return the mask of outputs that depend on inputs which depend on those of the network."""
    groups = getattr(layer, "groups", 1)
    connected = mask.cpu().flatten(2).any(2) if mask.dim() > 2 else mask.cpu()
    width = groups * connected.shape[1]
    if inputs is None:
        inputs = torch.ones(width, dtype=torch.bool)
    elif not inputs.any():
        inputs = torch.zeros(width, dtype=torch.bool)
    elif width % len(inputs):
        inputs = torch.ones(width, dtype=torch.bool)
    else:  # flattened: channels came first (convolutions), or last
        times = width // len(inputs)
        inputs = inputs.repeat_interleave(times) | inputs.repeat(times)
    rows = connected.reshape(groups, -1, connected.shape[1])
    return (rows & inputs.reshape(groups, 1, -1)).any(dim=2).flatten()
