"""The tensor table of an ONNX file, including files with sparse operators, whose rows name the operator."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import onnx

from rigl_compress.exporters.bounded_tensors import array_of
from rigl_compress.exporters.onnx_export import ExportedModel, describe
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.exporters.tensor_table import TensorRow
from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.packed_weights import size_of
from rigl_compress.runtime.rewrite import DOMAIN, sparse_outputs

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


def read_contents(path: Path) -> ExportedModel:
    """Return the contents of an ONNX file; packed weights have their names in the source, and their operators."""
    model = load_model(path)
    found = describe(path, model)
    if not sparse_outputs(model):
        return found
    packed = dict(packed_rows(model))
    rows = sorted((packed.get(row.name, row) for row in found.tensors), key=lambda row: -row.total)
    facts = {key: value for key, value in found.metadata.items() if key != LAYERS}
    return replace(found, tensors=tuple(rows), metadata=facts)


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
