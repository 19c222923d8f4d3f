"""The rows of packed weights in the tensor table of an ONNX file, with their names and shapes in the source."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import onnx

from rigl_compress.exporters.bounded_tensors import array_of
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.exporters.tensor_table import TensorRow
from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.packed_weights import size_of
from rigl_compress.runtime.rewrite import DOMAIN

LAYERS = "layers"  # metadata key of the packed weights


def layer_metadata(layers: tuple[Layer, ...]) -> dict[str, dict[str, Any]]:
    """Return the metadata of packed weights: the name and the shape of each in the source."""
    return {f"{layer.output}/packed": {"weight": weight, "shape": _shape(layer)} for layer, weight in _weights(layers)}


def _weights(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, str]]:
    for layer in layers:
        node, read = layer.nodes[0], {layer.x, *(name for each in layer.before for name in each.input)}
        place = 2 if layer.projection is not None else 0 if node.input[1] in read else 1
        yield layer, node.input[place]
        if layer.projection is not None:
            yield layer.projection, layer.nodes[0].input[1]


def _shape(layer: Layer) -> list[int]:
    """Return the shape of the weights; the matrix of a grouped convolution or with a folded selection is larger."""
    kernel = layer.settings.get("kernel_shape", [])
    rows = len(layer.matrix)
    return [rows, layer.weights // rows // prod(kernel), *kernel]


def packed_rows(model: onnx.ModelProto) -> Iterator[tuple[str, TensorRow]]:
    """Yield the rows of packed weights, each with its name in the file."""
    metadata = metadata_of(model).get(LAYERS)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        tensor = tensors.get(node.input[1]) if node.domain == DOMAIN and len(node.input) > 1 else None
        if tensor is not None and tensor.data_type == onnx.TensorProto.UINT8:  # dense neighbors have plain weights
            rows, columns, nonzeros = size_of(array_of(tensor).tobytes())
            known = _known(metadata, tensor.name, nonzeros) or {"weight": tensor.name, "shape": [rows, columns]}
            shape = tuple(known["shape"])
            yield tensor.name, TensorRow(known["weight"], shape, nonzeros, node.op_type, tensor.ByteSize())


def _known(metadata: Any, name: str, nonzeros: int) -> Mapping[str, Any] | None:
    """Return the metadata of a tensor if it is valid: files are not trusted."""
    found = metadata.get(name) if isinstance(metadata, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("weight"), str):
        return None
    shape = found.get("shape")
    fits = isinstance(shape, list) and all(type(axis) is int and axis > 0 for axis in shape)
    return found if fits and prod(found["shape"]) >= nonzeros else None
