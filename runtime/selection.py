"""Selections before a sparse layer: its weights tell which inputs to read, so nothing has to be copied for it first."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
import onnx
from onnx import helper

from rigl_compress.runtime.graph import Array, Graph, Shape, attributes, is_standard
from rigl_compress.runtime.layers import Layer

# How many inputs the kernels pass over in the time in which ONNX Runtime copies one that is picked: numbers one by one
# before a product, whole channels before a convolution. Where more are left out, the copy is cheaper.
_PASSED_OVER: Mapping[str, int] = {"SparseMatMul": 24, "SparseConv": 2}
_VIEWS = ("Flatten", "Reshape")
_FAR = 2**62  # ends of slices that mean the end of the axis lie beyond


def read_directly(graph: Graph, layer: Layer) -> Layer:
    """Let a layer read what a Gather or a Slice before it picks from: its weights get zeros for all other inputs.

    A selection of channels is followed through a Flatten, too. What is not understood stays as it is.
    """
    maker = graph.makers.get(layer.x)
    if layer.operator not in _PASSED_OVER or maker is None:
        return layer
    if layer.operator == "SparseMatMul" and is_standard(maker, *_VIEWS):
        return _through_view(graph, layer, maker)
    shape = graph.shape(maker.input[0]) if maker.input else None
    picked = _picked(graph, maker)
    axis = 1 if layer.operator == "SparseConv" else len(shape or ()) - 1
    if picked is None or shape is None or picked[0] != axis:
        return layer
    spread = _spread(layer, str(maker.input[0]), picked[1], shape[axis])
    one_by_one = spread is not layer and layer.operator == "SparseMatMul" and is_standard(maker, "Gather")
    return replace(spread, picked=len(picked[1])) if one_by_one else spread


def _through_view(graph: Graph, layer: Layer, view: onnx.NodeProto) -> Layer:
    """Follow a selection of channels that are then laid out in a row: whole runs of columns are picked."""
    maker, flat, small = graph.makers.get(view.input[0]), graph.shape(layer.x), graph.shape(view.input[0])
    picked = _picked(graph, maker) if maker is not None else None
    shape = graph.shape(maker.input[0]) if maker is not None else None
    if picked is None or shape is None or not _flattens(small, flat) or not _flattens(shape):
        return layer
    axis, positions = picked
    sizes = [int(size) for size in shape[1:]]
    if axis == 0:
        return layer
    columns = np.arange(prod(sizes)).reshape(sizes).take(positions, axis - 1).reshape(-1)
    name = f"{layer.output}/all"
    spread = _spread(layer, name, columns, prod(sizes))
    flatten = helper.make_node("Flatten", [maker.input[0]], [name], axis=1)  # type: ignore[union-attr]
    return spread if spread is layer else replace(spread, before=(flatten,))


def _flattens(shape: Shape | None, flat: Shape | None = None) -> bool:
    """Tell whether all axes but the first are known, and are laid out in a row in the flat shape."""
    if shape is None or len(shape) < 2 or not all(isinstance(size, int) and size > 0 for size in shape[1:]):
        return False
    return flat is None or (len(flat) == 2 and flat[1] == prod(int(size) for size in shape[1:]))


def _picked(graph: Graph, node: onnx.NodeProto) -> tuple[int, Array] | None:
    """Give the axis and the positions that an operator picks along one axis of known size, none of them twice."""
    shape = graph.shape(node.input[0]) if node.input else None
    if shape is None:
        return None
    found = _gathered(graph, node) if is_standard(node, "Gather") else _sliced(graph, node, shape)
    if found is None or not -len(shape) <= found[0] < len(shape):
        return None
    axis, positions = found[0] % len(shape), found[1]
    size = shape[axis]
    if not isinstance(size, int) or not positions.size or not ((-size <= positions) & (positions < size)).all():
        return None
    positions = positions % size
    return (axis, positions) if len(np.unique(positions)) == len(positions) else None


def _gathered(graph: Graph, node: onnx.NodeProto) -> tuple[int, Array] | None:
    index = graph.constant(node.input[1])
    return (attributes(node).get("axis", 0), index) if index is not None and index.ndim == 1 else None


def _sliced(graph: Graph, node: onnx.NodeProto, shape: Shape) -> tuple[int, Array] | None:
    """Give the axis and the positions of a slice along one axis; before opset 10 it had attributes, and is left."""
    if not is_standard(node, "Slice") or not 4 <= len(node.input) <= 5:
        return None
    constants = [graph.constant(name) for name in node.input[1:]]
    if any(each is None or each.size != 1 for each in constants):
        return None
    start, end, axis, *step = (int(each.reshape(())) for each in constants if each is not None)
    size = shape[axis] if -len(shape) <= axis < len(shape) else ""
    if not isinstance(size, int) or step not in ([], [1]):
        return None
    return axis, np.arange(size)[start : min(end, _FAR)]


def _spread(layer: Layer, x: str, positions: Array, total: int | str) -> Layer:
    """Give a layer of all inputs whose weights stand in the columns that were picked."""
    rows, taps = len(layer.matrix), prod(layer.settings.get("kernel_shape", [1]))
    narrow = layer.matrix.reshape(rows, -1, taps)
    fits = isinstance(total, int) and narrow.shape[1] == len(positions)
    if not fits or int(total) > _PASSED_OVER[layer.operator] * len(positions):
        return layer
    wide = np.zeros((rows, int(total), taps), dtype=layer.matrix.dtype)
    wide[:, positions] = narrow
    return replace(layer, x=x, matrix=wide.reshape(rows, -1))
