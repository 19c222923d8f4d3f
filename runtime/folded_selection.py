"""Selections before a sparse layer, folded into its weights: they determine which inputs are read, without a copy."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
import onnx
from onnx import helper

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Array, Graph, Shape, attributes, is_standard

# How many unused inputs the kernels skip in the time in which ONNX Runtime copies a selected one: single numbers before
# a product, whole channels before a convolution. With more unused inputs per selected one, the copy is cheaper.
_MAX_WIDENING: Mapping[str, int] = {"SparseMatMul": 24, "SparseConv": 2}
_VIEWS = ("Flatten", "Reshape")
_END = 2**62  # larger ends of slices mean the end of the axis


def fold_selection(graph: Graph, layer: Layer) -> Layer:
    """Fold a Gather or Slice before a layer into it: its weights get zero columns for the unselected inputs.

    A selection of channels is also found in front of a Flatten. A layer behind any other node is returned unchanged.
    """
    producer = graph.producers.get(layer.x)
    if layer.operator not in _MAX_WIDENING or producer is None:
        return layer
    if layer.operator == "SparseMatMul" and is_standard(producer, *_VIEWS):
        return _through_view(graph, layer, producer)
    shape = graph.shape(producer.input[0]) if producer.input else None
    selection = _selection(graph, producer)
    axis = 1 if layer.operator == "SparseConv" else len(shape or ()) - 1
    if selection is None or shape is None or selection[0] != axis:
        return layer
    widened = _widened(layer, str(producer.input[0]), selection[1], shape[axis])
    one_by_one = widened is not layer and layer.operator == "SparseMatMul" and is_standard(producer, "Gather")
    return replace(widened, gathered=len(selection[1])) if one_by_one else widened


def _through_view(graph: Graph, layer: Layer, view: onnx.NodeProto) -> Layer:
    """Fold a selection of channels in front of a Flatten: it selects whole runs of columns."""
    producer, flat, small = graph.producers.get(view.input[0]), graph.shape(layer.x), graph.shape(view.input[0])
    selection = _selection(graph, producer) if producer is not None else None
    shape = graph.shape(producer.input[0]) if producer is not None else None
    if selection is None or shape is None or not _flattens(small, flat) or not _flattens(shape):
        return layer
    axis, positions = selection
    sizes = [int(size) for size in shape[1:]]
    if axis == 0:
        return layer
    columns = np.arange(prod(sizes)).reshape(sizes).take(positions, axis - 1).reshape(-1)
    name = f"{layer.output}/all"
    widened = _widened(layer, name, columns, prod(sizes))
    flatten = helper.make_node("Flatten", [producer.input[0]], [name], axis=1)  # type: ignore[union-attr]
    return widened if widened is layer else replace(widened, before=(flatten,))


def _flattens(shape: Shape | None, flat: Shape | None = None) -> bool:
    """Check that all axes but the first are known, and that the flat shape is their product."""
    if shape is None or len(shape) < 2 or not all(isinstance(size, int) and size > 0 for size in shape[1:]):
        return False
    return flat is None or (len(flat) == 2 and flat[1] == prod(int(size) for size in shape[1:]))


def _selection(graph: Graph, node: onnx.NodeProto) -> tuple[int, Array] | None:
    """Return the axis and the positions a node selects along one axis of known size, if all differ."""
    shape = graph.shape(node.input[0]) if node.input else None
    if shape is None:
        return None
    found = _gather_selection(graph, node) if is_standard(node, "Gather") else _slice_selection(graph, node, shape)
    if found is None or not -len(shape) <= found[0] < len(shape):
        return None
    axis, positions = found[0] % len(shape), found[1]
    size = shape[axis]
    if not isinstance(size, int) or not positions.size or not ((-size <= positions) & (positions < size)).all():
        return None
    positions = positions % size
    return (axis, positions) if len(np.unique(positions)) == len(positions) else None


def _gather_selection(graph: Graph, node: onnx.NodeProto) -> tuple[int, Array] | None:
    index = graph.constant(node.input[1])
    return (attributes(node).get("axis", 0), index) if index is not None and index.ndim == 1 else None


def _slice_selection(graph: Graph, node: onnx.NodeProto, shape: Shape) -> tuple[int, Array] | None:
    """Return the axis and the positions of a slice along one axis, with inputs as since opset 10."""
    if not is_standard(node, "Slice") or not 4 <= len(node.input) <= 5:
        return None
    constants = [graph.constant(name) for name in node.input[1:]]
    if any(each is None or each.size != 1 for each in constants):
        return None
    start, end, axis, *step = (int(each.reshape(())) for each in constants if each is not None)
    size = shape[axis] if -len(shape) <= axis < len(shape) else ""
    if not isinstance(size, int) or step not in ([], [1]):
        return None
    return axis, np.arange(size)[start : min(end, _END)]


def _widened(layer: Layer, x: str, positions: Array, total: int | str) -> Layer:
    """Return the layer over all inputs, with its weights in the selected columns."""
    rows, taps = len(layer.matrix), prod(layer.settings.get("kernel_shape", [1]))
    narrow = layer.matrix.reshape(rows, -1, taps)
    fits = isinstance(total, int) and narrow.shape[1] == len(positions)
    if not fits or int(total) > _MAX_WIDENING[layer.operator] * len(positions):
        return layer
    wide = np.zeros((rows, int(total), taps), dtype=layer.matrix.dtype)
    wide[:, positions] = narrow
    return replace(layer, x=x, matrix=wide.reshape(rows, -1))
