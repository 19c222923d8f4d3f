"""What a layer reads for some positions of its outputs, as columns of a matrix."""

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer

Array = NDArray[Any]
Shape = tuple[int, ...]


def sampled_positions(layer: PrunableLayer, shape: Shape, most: int, seed: int) -> Array:
    """Return some positions of a layer's outputs, at most as many; the same for the same seed.

    >>> layer = PrunableLayer("w", "MatMul", (0,), (3, 2), transposed=True)
    >>> sampled_positions(layer, (5, 2, 3), 100, 0).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    count = prod(output_axes(layer, shape))
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def output_axes(layer: PrunableLayer, shape: Shape) -> Shape:
    """Return the axes of a layer's outputs but the channels, for inputs of a shape."""
    if layer.operator != "Conv":
        return shape[:-1]
    sizes, pads = _window(layer), padding(layer, shape[2:])
    lengths = (
        (length + before + after - reach) // stride + 1
        for length, (before, after), reach, stride in zip(
            shape[2:], pads, sizes, layer.settings["strides"], strict=True
        )
    )
    return (shape[0], *(max(0, each) for each in lengths))


def _window(layer: PrunableLayer) -> Shape:
    """Return how far a filter reaches along each axis."""
    return tuple((size - 1) * step + 1 for size, step in zip(layer.shape[2:], layer.settings["dilations"], strict=True))


def padding(layer: PrunableLayer, lengths: Shape) -> list[tuple[int, int]]:
    """Return the zeros before and after each axis of an image."""
    kind, axes = layer.settings["auto_pad"], len(lengths)
    if kind == "NOTSET":
        pads = layer.settings["pads"]
        return list(zip(pads[:axes], pads[axes:], strict=True))
    if kind == "VALID":
        return [(0, 0)] * axes
    return [
        _same(length, reach, stride, upper=kind == "SAME_UPPER")
        for length, reach, stride in zip(lengths, _window(layer), layer.settings["strides"], strict=True)
    ]


def _same(length: int, reach: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """Return padding with which an axis has as many outputs as strides fit into it.

    >>> _same(5, 3, 2, upper=True), _same(6, 3, 2, upper=True), _same(6, 3, 2, upper=False)
    ((1, 1), (0, 1), (1, 0))
    """
    total = max(0, (-(-length // stride) - 1) * stride + reach - length)
    small, large = total // 2, total - total // 2
    return (small, large) if upper else (large, small)


def columns_of(layer: PrunableLayer, x: Array, positions: Array) -> Tensor:
    """Return inputs as [groups, columns, samples]."""
    is_conv = layer.operator == "Conv"
    found = _windows(layer, x, positions) if is_conv else x.reshape(-1, x.shape[-1])[positions]
    matrix = torch.from_numpy(np.ascontiguousarray(found.T, dtype=np.float32))
    return matrix.reshape(layer.groups, layer.columns, len(positions))


def _windows(layer: PrunableLayer, x: Array, positions: Array) -> Array:
    """Return what a convolution reads, [samples, channels × window]."""
    if x.ndim != len(layer.shape):
        raise InputError(f"the inputs of {layer.name} have {x.ndim} axes, expected {len(layer.shape)}")
    where = np.unravel_index(positions, output_axes(layer, x.shape))
    padded = np.pad(x, [(0, 0), (0, 0), *padding(layer, x.shape[2:])])
    views = sliding_window_view(padded, _window(layer), axis=tuple(range(2, x.ndim)))
    strided = [place * stride for place, stride in zip(where[1:], layer.settings["strides"], strict=True)]
    taken = views[(where[0], slice(None), *strided)]  # [samples, channels, window]
    kept = tuple(slice(None, None, step) for step in layer.settings["dilations"])
    return taken[(slice(None), slice(None), *kept)].reshape(len(positions), -1)
