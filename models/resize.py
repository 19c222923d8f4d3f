"""Smaller copies of layers: some of their inputs, some of their outputs, everything else as it was."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.errors import InputError

Kept = Tensor | None  # positions that stay, in order; None: all of them
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def resized(module: nn.Module, inputs: Kept, outputs: Kept) -> nn.Module:
    """Give a copy of a layer that has only the kept inputs and outputs.

    >>> small = resized(nn.Linear(4, 3), torch.tensor([0, 2]), torch.tensor([1]))
    >>> small.weight.shape, small
    (torch.Size([1, 2]), Linear(in_features=2, out_features=1, bias=True))
    """
    for types, resize in _RESIZERS:
        if isinstance(module, types):
            copy: Any = deepcopy(module)
            resize(copy, inputs, outputs)
            copy.lost_outputs = outputs is not None or getattr(module, "lost_outputs", False)
            result: nn.Module = copy
            return result
    raise InputError(f"a layer of type {type(module).__name__} cannot be made smaller")


def cut_weights(model: nn.Module) -> set[str]:
    """Name the weights of layers that lost outputs."""
    lost = (name for name, layer in model.named_modules() if getattr(layer, "lost_outputs", False))
    return {f"{name}.weight" if name else "weight" for name in lost}


def _pick(tensor: Tensor, dim: int, kept: Kept) -> Tensor:
    return tensor if kept is None else tensor.index_select(dim, kept.to(tensor.device))


def _cut(module: nn.Module, name: str, dim: int, kept: Kept) -> None:
    """Keep some slices of a parameter or a buffer, if the layer has it."""
    tensor = getattr(module, name, None)
    if tensor is None or kept is None:
        return
    small = _pick(tensor.detach(), dim, kept).clone()
    setattr(module, name, nn.Parameter(small, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else small)


def _count(kept: Kept, before: int) -> int:
    return before if kept is None else len(kept)


def _linear(layer: Any, inputs: Kept, outputs: Kept) -> None:
    _cut(layer, "weight", 0, outputs)
    _cut(layer, "weight", 1, inputs)
    _cut(layer, "bias", 0, outputs)
    layer.in_features, layer.out_features = _count(inputs, layer.in_features), _count(outputs, layer.out_features)


def _convolution(layer: Any, inputs: Kept, outputs: Kept) -> None:
    _cut(layer, "weight", 0, outputs)
    _cut(layer, "bias", 0, outputs)
    if inputs is not None:  # whole groups stay or go, a group's weights being rows; the last one may lose single inputs
        per_group = layer.in_channels // layer.groups
        layer.groups = len((inputs // per_group).unique())
        _cut(layer, "weight", 1, inputs % per_group if layer.groups == 1 else None)
    layer.in_channels, layer.out_channels = _count(inputs, layer.in_channels), _count(outputs, layer.out_channels)


def _norm(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    for name in ("weight", "bias", "running_mean", "running_var"):
        _cut(layer, name, 0, outputs)
    layer.num_features = _count(outputs, layer.num_features)


def _group_norm(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    _cut(layer, "weight", 0, outputs)
    _cut(layer, "bias", 0, outputs)
    per_group = layer.num_channels // layer.num_groups  # whole groups stay or go
    layer.num_channels = _count(outputs, layer.num_channels)
    layer.num_groups = layer.num_channels // per_group


def _prelu(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    if layer.num_parameters > 1:
        _cut(layer, "weight", 0, outputs)
        layer.num_parameters = _count(outputs, layer.num_parameters)


def _embedding(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    _cut(layer, "weight", 1, outputs)
    layer.embedding_dim = _count(outputs, layer.embedding_dim)


def gate_rows(kept: Tensor, hidden: int) -> Tensor:
    """Give the rows of the three gates of a GRU that belong to some hidden units.

    >>> gate_rows(torch.tensor([0, 2]), 3).tolist()
    [0, 2, 3, 5, 6, 8]
    """
    return torch.cat([kept + gate * hidden for gate in range(3)])


def _gru(layer: Any, inputs: Kept, outputs: Kept) -> None:
    rows = None if outputs is None else gate_rows(outputs, layer.hidden_size)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        _cut(layer, name, 0, rows)
    _cut(layer, "weight_ih_l0", 1, inputs)
    _cut(layer, "weight_hh_l0", 1, outputs)
    layer.input_size, layer.hidden_size = _count(inputs, layer.input_size), _count(outputs, layer.hidden_size)
    layer._flat_weights = [getattr(layer, name) for name in layer._flat_weights_names]


_SIZES = (
    ("in_features", "out_features"),
    ("in_channels", "out_channels"),
    ("input_size", "hidden_size"),
    (None, "num_features"),
    (None, "num_channels"),
    (None, "num_parameters"),
    (None, "embedding_dim"),
)


def size_of(module: nn.Module) -> tuple[int, int]:
    """Give the number of inputs and outputs of a layer; one that works on each channel by itself has only outputs.

    >>> size_of(nn.Conv2d(3, 8, 1)), size_of(nn.BatchNorm2d(8))
    ((3, 8), (0, 8))
    """
    found: Any = next((names for names in _SIZES if hasattr(module, names[1])), None)
    if found is None:
        raise InputError(f"a layer of type {type(module).__name__} cannot be made smaller")
    inputs, outputs = (int(getattr(module, name)) if name else 0 for name in found)
    return inputs, outputs


def folding(module: nn.Module) -> tuple[str, str]:
    """Name the weight that meets a layer's input, and the bias that constants of the input can go into."""
    return ("weight_ih_l0", "bias_ih_l0") if isinstance(module, nn.GRU) else ("weight", "bias")


_RESIZERS: tuple[tuple[tuple[type[nn.Module], ...], Callable[[Any, Kept, Kept], None]], ...] = (
    ((nn.Linear,), _linear),
    (CONVOLUTIONS, _convolution),
    (BATCH_NORMS, _norm),
    ((nn.GroupNorm,), _group_norm),
    ((nn.PReLU,), _prelu),
    ((nn.Embedding,), _embedding),
    ((nn.GRU,), _gru),
)


class SelectingLinear(nn.Linear):
    """A linear layer that picks the features it needs from the full input, so that the interface stays the same."""

    index: Tensor
    span: tuple[int, int] | None = None  # start and length, where what it picks is one run; then there is no index

    def forward(self, input: Tensor) -> Tensor:
        """[…, all features] → […, outputs]."""
        return super().forward(_selected(self, input, input.dim() - 1))


class SelectingConv2d(nn.Conv2d):
    """A convolution that picks the channels it needs from the full input."""

    index: Tensor
    span: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[N, all channels, H, W] → [N, outputs, H', W'], with or without N."""
        return super().forward(_selected(self, input, input.dim() - 3))


class SelectingConv1d(nn.Conv1d):
    """A convolution that picks the channels it needs from the full input."""

    index: Tensor
    span: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[N, all channels, L] → [N, outputs, L'], with or without N."""
        return super().forward(_selected(self, input, input.dim() - 2))


Selecting = SelectingLinear | SelectingConv2d | SelectingConv1d


def _selected(layer: Selecting, input: Tensor, dim: int) -> Tensor:
    return input.index_select(dim, layer.index) if layer.span is None else input.narrow(dim, *layer.span)


_SELECTING: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: SelectingLinear,
    nn.Conv2d: SelectingConv2d,
    nn.Conv1d: SelectingConv1d,
}


def can_select(module: nn.Module) -> bool:
    """Say whether a layer can pick its inputs itself: only the plain types can."""
    return type(module) in (*_SELECTING, *_SELECTING.values())


def selecting(small: nn.Module, inputs: Tensor) -> nn.Module:
    """Let an already resized layer pick these inputs from the full one; a layer that picks already, picks fewer."""
    if isinstance(small, Selecting):
        small.index = _pick(small.index, 0, inputs)
        return small
    weight: Any = small.weight
    small.__class__ = _SELECTING[type(small)]  # the same layer with another forward
    small.register_buffer("index", inputs.clone().to(weight.device))
    return small


@torch.no_grad()
def widen(layer: Selecting, read: Tensor, total: int) -> None:
    """Let a layer read these of all inputs, at least those that it picks: the others meet zeros. Changes the layer.

    A layer that reads all of its inputs is an ordinary one again; one that reads a single run of them needs no index.

    >>> layer = selecting(nn.Linear(2, 3), torch.tensor([1, 3]))
    >>> widen(layer, torch.arange(4), 4)
    >>> layer, layer.weight[:, [0, 2]].abs().sum().item()
    (Linear(in_features=4, out_features=3, bias=True), 0.0)
    """
    narrow: Any = layer
    weight = narrow.weight.new_zeros(narrow.weight.shape[0], len(read), *narrow.weight.shape[2:])
    weight[:, torch.searchsorted(read, narrow.index)] = narrow.weight
    narrow.weight = nn.Parameter(weight, narrow.weight.requires_grad)
    setattr(narrow, "in_features" if isinstance(layer, nn.Linear) else "in_channels", len(read))
    narrow.index = read
    first, last = int(read[0]), int(read[-1])
    if last - first + 1 == len(read):
        narrow.span = first, len(read)
        del narrow.index
    if len(read) == total:
        del narrow.span
        narrow.__class__ = next(plain for plain, picking in _SELECTING.items() if picking is type(layer))
