"""What is in an ONNX file, also in one with sparse operators: there a row says which layer has which operator."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import onnx

from rigl_compress.exporters.contents import TensorRow
from rigl_compress.exporters.export import ExportedModel, described
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.exporters.tensors import array_of
from rigl_compress.runtime.layers import Layer
from rigl_compress.runtime.packed import size_of
from rigl_compress.runtime.rewrite import DOMAIN, sparse_outputs

LAYERS = "layers"  # the key of what is written about packed weights


def written_about(layers: tuple[Layer, ...]) -> dict[str, dict[str, Any]]:
    """Give what is written into a file about packed weights: the name and the shape that they had in the source."""
    return {f"{layer.output}/packed": {"weight": weight, "shape": _shape(layer)} for layer, weight in _weights(layers)}


def _weights(layers: tuple[Layer, ...]) -> Iterator[tuple[Layer, str]]:
    for layer in layers:
        yield layer, layer.nodes[0].input[1 if layer.projection is None else 2]
        if layer.projection is not None:
            yield layer.projection, layer.nodes[0].input[1]


def _shape(layer: Layer) -> list[int]:
    """Give the shape of the weights; the matrix of a grouped convolution, or of one behind a selection, is larger."""
    kernel = layer.settings.get("kernel_shape", [])
    rows = len(layer.matrix)
    return [rows, layer.weights // rows // prod(kernel), *kernel]


def read_contents(path: Path) -> ExportedModel:
    """Look into an ONNX file; packed weights are shown with the names that they had, and with their operators."""
    model = load_model(path)
    found = described(path, model)
    if not sparse_outputs(model):
        return found
    packed = dict(_packed_rows(model, metadata_of(model).get(LAYERS)))
    rows = sorted((packed.get(row.name, row) for row in found.tensors), key=lambda row: -row.total)
    facts = {key: value for key, value in found.metadata.items() if key != LAYERS}
    return replace(found, tensors=tuple(rows), metadata=facts)


def _packed_rows(model: onnx.ModelProto, written: Any) -> Iterator[tuple[str, TensorRow]]:
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        tensor = tensors.get(node.input[1]) if node.domain == DOMAIN and len(node.input) > 1 else None
        if tensor is not None and tensor.data_type == onnx.TensorProto.UINT8:  # dense neighbours have plain weights
            rows, columns, nonzeros = size_of(array_of(tensor).tobytes())
            known = _known(written, tensor.name, nonzeros) or {"weight": tensor.name, "shape": [rows, columns]}
            shape = tuple(known["shape"])
            yield tensor.name, TensorRow(known["weight"], shape, nonzeros, node.op_type, tensor.ByteSize())


def _known(written: Any, name: str, nonzeros: int) -> Mapping[str, Any] | None:
    """Give what is written about a tensor, if it makes sense: a file can come from anywhere."""
    found = written.get(name) if isinstance(written, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("weight"), str):
        return None
    shape = found.get("shape")
    fits = isinstance(shape, list) and all(type(axis) is int and axis > 0 for axis in shape)
    return found if fits and prod(found["shape"]) >= nonzeros else None
