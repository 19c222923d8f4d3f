"""Connections per input pixel of a model whose first layer reads a flattened image."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
_PASSING = {"Flatten", "Reshape", "Identity", "Squeeze", "Unsqueeze"}


def pixel_counts(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> Array | None:
    """Return the connections of each pixel, [height, width]; None if the model does not read a flattened image.

    `arrays` are the model's constants by name. Selections of pixels before the first layer are taken into account.
    """
    image = next((value for value in model.graph.input if value.name not in arrays), None)
    lengths = [axis.dim_value for axis in image.type.tensor_type.shape.dim] if image is not None else []
    if image is None or len(lengths) != 4 or lengths[1] != 1 or min(lengths[2:]) < 1:
        return None
    return _follow(model.graph, image.name, np.arange(lengths[2] * lengths[3]), (lengths[2], lengths[3]), arrays)


def _follow(
    graph: onnx.GraphProto, name: str, pixels: Array, size: tuple[int, int], arrays: Mapping[str, Array]
) -> Array | None:
    readers = [node for node in graph.node if name in node.input]
    if len(readers) != 1:
        return None
    (node,) = readers
    if node.op_type in _PASSING:
        return _follow(graph, node.output[0], pixels, size, arrays)
    other = next((arrays[each] for each in node.input if each in arrays), None)
    if other is None or node.input[0] != name:
        return None
    if node.op_type == "Gather" and other.ndim == 1:
        return _follow(graph, node.output[0], pixels[other], size, arrays)
    if node.op_type == "Slice":
        ends = [arrays.get(each) for each in node.input[1:]]
        plain = len(ends) == 3 and all(each is not None and each.size == 1 for each in ends)
        start, end, axis = (int(each.reshape(())) for each in ends if each is not None) if plain else (0, 0, 0)
        return _follow(graph, node.output[0], pixels[start:end], size, arrays) if axis in (-1, 1) else None
    if node.op_type not in ("Gemm", "MatMul") or other.ndim != 2:
        return None
    transposed = any(each.name == "transB" and each.i for each in node.attribute)
    weight = other if transposed else other.T  # [out, in]
    if weight.shape[1] != len(pixels):
        return None
    counts = np.bincount(pixels, weights=np.count_nonzero(weight, axis=0), minlength=size[0] * size[1])
    return counts.astype(np.int64).reshape(size)
