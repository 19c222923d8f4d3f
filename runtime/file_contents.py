"""The contents of an ONNX file, including files with sparse operators, whose rows name the operator."""

from dataclasses import replace
from pathlib import Path

from rigl_compress.exporters.onnx_export import ExportedModel, describe
from rigl_compress.exporters.onnx_file import load_model
from rigl_compress.runtime.rewrite import sparse_outputs
from rigl_compress.runtime.sparse_layer_table import LAYERS, packed_rows


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
