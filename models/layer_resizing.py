"""Smaller copies of layers, with some of their inputs and outputs."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.parameter_cutting import Kept, count, cut, pick
from rigl_compress.models.recurrent_layers import cell_layers, cell_sizes, resize_recurrent
from rigl_compress.models.resized_attention import with_fewer_heads

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
RECURRENT = (nn.GRU, nn.LSTM, nn.RNN)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


_RESIZABLE = "Linear, a convolution, a batch or group norm, PReLU, Embedding, GRU, LSTM, RNN or MultiheadAttention"


def resized(module: nn.Module, inputs: Kept, outputs: Kept) -> nn.Module:
    """Return a copy of a layer that has only the kept inputs and outputs.

    >>> small = resized(nn.Linear(4, 3), torch.tensor([0, 2]), torch.tensor([1]))
    >>> small.weight.shape, small
    (torch.Size([1, 2]), Linear(in_features=2, out_features=1, bias=True))
    """
    for types, resize in _RESIZERS:
        if isinstance(module, types):
            copy: Any = deepcopy(module)
            resize(copy, inputs, outputs)
            lost = outputs is not None and not isinstance(module, nn.MultiheadAttention)  # it has lost heads
            copy.lost_outputs = lost or getattr(module, "lost_outputs", False)
            result: nn.Module = copy
            return result
    raise InputError(f"a layer of type {type(module).__name__} cannot be resized, expected {_RESIZABLE}")


def cut_weights(model: nn.Module) -> set[str]:
    """Return the names of the weights of layers that lost outputs."""
    lost = (name for name, layer in model.named_modules() if getattr(layer, "lost_outputs", False))
    return {f"{name}.weight" if name else "weight" for name in lost}


def _linear(layer: Any, inputs: Kept, outputs: Kept) -> None:
    cut(layer, "weight", 0, outputs)
    cut(layer, "weight", 1, inputs)
    cut(layer, "bias", 0, outputs)
    layer.in_features, layer.out_features = count(inputs, layer.in_features), count(outputs, layer.out_features)


def _convolution(layer: Any, inputs: Kept, outputs: Kept) -> None:
    cut(layer, "weight", 0, outputs)
    cut(layer, "bias", 0, outputs)
    if inputs is not None:  # groups are kept or removed as a whole; the last one may lose single inputs
        per_group = layer.in_channels // layer.groups
        layer.groups = len((inputs // per_group).unique())
        cut(layer, "weight", 1, inputs % per_group if layer.groups == 1 else None)
    layer.in_channels, layer.out_channels = count(inputs, layer.in_channels), count(outputs, layer.out_channels)


def _transposed(layer: Any, inputs: Kept, outputs: Kept) -> None:
    cut(layer, "bias", 0, outputs)
    per_group = layer.out_channels // layer.groups
    if inputs is not None:
        layer.groups = len((inputs // (layer.in_channels // layer.groups)).unique())
    cut(layer, "weight", 0, inputs)
    if outputs is not None and layer.groups == 1:  # else whole groups are removed
        cut(layer, "weight", 1, outputs % per_group)
    layer.in_channels, layer.out_channels = count(inputs, layer.in_channels), count(outputs, layer.out_channels)


def by_output(module: nn.Module, tensor: Tensor) -> Tensor:
    """Return a weight, or a mask of it, as [outputs, inputs of a group, …]; a transposed convolution has inputs first.

    >>> by_output(nn.ConvTranspose2d(4, 6, 3, groups=2), torch.zeros(4, 3, 3, 3)).shape
    torch.Size([6, 2, 3, 3])
    """
    if not isinstance(module, TRANSPOSED):
        return tensor
    if module.groups == 1:
        return tensor.transpose(0, 1)
    grouped = tensor.reshape(module.groups, -1, *tensor.shape[1:]).transpose(1, 2)
    return grouped.reshape(-1, *grouped.shape[2:])


def _norm(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    for name in ("weight", "bias", "running_mean", "running_var"):
        cut(layer, name, 0, outputs)
    layer.num_features = count(outputs, layer.num_features)


def _group_norm(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    cut(layer, "weight", 0, outputs)
    cut(layer, "bias", 0, outputs)
    per_group = layer.num_channels // layer.num_groups  # groups are kept or removed as a whole
    layer.num_channels = count(outputs, layer.num_channels)
    layer.num_groups = layer.num_channels // per_group


def _prelu(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    if layer.num_parameters > 1:
        cut(layer, "weight", 0, outputs)
        layer.num_parameters = count(outputs, layer.num_parameters)


def _embedding(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    cut(layer, "weight", 1, outputs)
    layer.embedding_dim = count(outputs, layer.embedding_dim)


def _unflatten(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs
    first, *rest = layer.unflattened_size
    layer.unflattened_size = (count(outputs, first), *rest)


def _attention(layer: Any, inputs: Kept, outputs: Kept) -> None:
    del inputs  # the columns of the output projection, which belong to the heads
    if outputs is not None:
        with_fewer_heads(layer, outputs)


_SIZES = (
    ("in_features", "out_features"),
    ("in_channels", "out_channels"),
    (None, "num_features"),
    (None, "num_channels"),
    (None, "num_parameters"),
    (None, "embedding_dim"),
)


def size_of(module: nn.Module) -> tuple[int, int]:
    """Return the number of inputs and outputs of a layer; a channel-wise layer has only outputs.

    Outputs of a recurrent layer are the hidden units of all its layers and directions, those of attention its heads,
    whose inputs are the values that its output projection reads.

    >>> size_of(nn.Conv2d(3, 8, 1)), size_of(nn.BatchNorm2d(8)), size_of(nn.GRU(4, 5, num_layers=2))
    ((3, 8), (0, 8), (4, 10))
    """
    if isinstance(module, RECURRENT):
        return module.input_size, sum(cell_sizes(module))
    if isinstance(module, nn.Unflatten):
        return 0, int(module.unflattened_size[0])
    if isinstance(module, nn.MultiheadAttention):
        return module.num_heads * module.head_dim, module.num_heads
    found: Any = next((names for names in _SIZES if hasattr(module, names[1])), None)
    if found is None:
        raise InputError(f"a layer of type {type(module).__name__} cannot be resized, expected {_RESIZABLE}")
    inputs, outputs = (int(getattr(module, name)) if name else 0 for name in found)
    return inputs, outputs


def folding(module: nn.Module) -> list[tuple[str, str]]:
    """Return the weights that multiply a layer's input, each with the bias that absorbs constant inputs.

    >>> folding(nn.LSTM(4, 3, bidirectional=True))
    [('weight_ih_l0', 'bias_ih_l0'), ('weight_ih_l0_reverse', 'bias_ih_l0_reverse')]
    """
    if isinstance(module, RECURRENT):
        return [(f"weight_ih_{cell}", f"bias_ih_{cell}") for cell in cell_layers(module)[0]]
    if isinstance(module, nn.MultiheadAttention):
        return [("out_proj.weight", "out_proj.bias")]
    return [("weight", "bias")]


def gain_bias(module: nn.Module) -> None:
    """Add a bias of zeros to a layer without one, in place."""
    layer: Any = module.out_proj if isinstance(module, nn.MultiheadAttention) else module
    if layer.bias is None:
        layer.bias = nn.Parameter(layer.weight.new_zeros(size_of(layer)[1]))


_RESIZERS: tuple[tuple[tuple[type[nn.Module], ...], Callable[[Any, Kept, Kept], None]], ...] = (
    ((nn.Linear,), _linear),
    (CONVOLUTIONS, _convolution),
    (TRANSPOSED, _transposed),
    (BATCH_NORMS, _norm),
    ((nn.GroupNorm,), _group_norm),
    ((nn.PReLU,), _prelu),
    ((nn.Embedding,), _embedding),
    (RECURRENT, resize_recurrent),
    ((nn.Unflatten,), _unflatten),
    ((nn.MultiheadAttention,), _attention),
)


class SelectingLinear(nn.Linear):
    """A linear layer that selects its features from the full input, so that the network's interface stays the same."""

    index: Tensor
    span: tuple[int, int] | None = None  # start and length of contiguous inputs, which need no index

    def forward(self, input: Tensor) -> Tensor:
        """[…, all features] → […, outputs]."""
        return super().forward(_selected(self, input, input.dim() - 1))


class SelectingConv2d(nn.Conv2d):
    """A convolution that selects its channels from the full input."""

    index: Tensor
    span: tuple[int, int] | None = None

    def forward(self, input: Tensor) -> Tensor:
        """[N, all channels, H, W] → [N, outputs, H', W'], with or without N."""
        return super().forward(_selected(self, input, input.dim() - 3))


class SelectingConv1d(nn.Conv1d):
    """A convolution that selects its channels from the full input."""

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
    """Return whether a layer can select its inputs: only layers of exactly torch's types can."""
    return type(module) in (*_SELECTING, *_SELECTING.values())


def selecting(small: nn.Module, inputs: Tensor) -> nn.Module:
    """Turn a resized layer into one that selects these inputs; a selecting layer selects fewer. Changes the layer."""
    if isinstance(small, Selecting):
        small.index = pick(small.index, 0, inputs)
        return small
    weight: Any = small.weight
    small.__class__ = _SELECTING[type(small)]  # the same layer with another forward
    small.register_buffer("index", inputs.clone().to(weight.device))
    return small


@torch.no_grad()
def widen(layer: Selecting, read: Tensor, total: int) -> None:
    """Let a layer read more inputs than it selects, with zero weights for the added ones. Changes the layer.

    A layer that reads all inputs becomes an ordinary one; one that reads contiguous inputs needs no index.

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
        narrow.__class__ = next(plain for plain, selecting in _SELECTING.items() if selecting is type(layer))
