"""The way back: the plain model of an encoded one, bit by bit as the runtime rebuilds it."""

import numpy as np
import onnx
from onnx import numpy_helper

from rigl_compress.exporters.encodings import ENCODINGS, Array, Parts
from rigl_compress.exporters.indices import NAME as STEPS
from rigl_compress.exporters.indices import decode_indices
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.signs import NAME as SIGNED
from rigl_compress.exporters.signs import with_signs
from rigl_compress.exporters.sparsify import METADATA, metadata_of
from rigl_compress.exporters.values import VALUES
from rigl_compress.models.errors import InputError


def restore(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a copy with plain initializers only; sparse ones from elsewhere are made dense too."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    labels = metadata_of(model).get("tensors", {})
    arrays = {name: decoded(model, name, label) for name, label in labels.items()}
    _remove(plain.graph, {each for name in labels for each in ancestors(plain.graph, name)})
    arrays |= {sparse.values.name: dense_of(sparse) for sparse in plain.graph.sparse_initializer}
    del plain.graph.sparse_initializer[:]
    plain.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    kept = {entry.key: entry.value for entry in plain.metadata_props if entry.key != METADATA}
    del plain.metadata_props[:]
    onnx.helper.set_model_props(plain, kept)
    return plain


def decoded(model: onnx.ModelProto, name: str, label: str) -> Array:
    """Give the tensor that is rebuilt under a name, with the encoding and the value type of its label."""
    encoding, _, values = label.partition("+")
    parts = parts_of(model.graph, name)
    try:
        if encoding == STEPS:
            return decode_indices(parts)
        inner = _inner(parts, values) if values else parts
        shape = tuple(inner["shape"].tolist())
        array = ENCODINGS[encoding].decode(inner, shape)
        return with_signs(array, parts) if values == SIGNED else VALUES[values or "fp32"].widen(array, parts)
    except (KeyError, ValueError, IndexError):
        raise InputError(f"{name!r} is not stored as {label!r}, as the metadata says: export the model again") from None


def _inner(parts: Parts, values: str) -> Parts:
    """Give the parts of the narrower tensor that stands within a tensor."""
    inner = {
        part.removeprefix(values).removeprefix("/"): array for part, array in parts.items() if part.startswith(values)
    }
    return inner if "shape" in inner else {**inner, "shape": np.array(inner[""].shape)}


def parts_of(graph: onnx.GraphProto, name: str) -> Parts:
    """Give the arrays from which a tensor is rebuilt, by their names within its own."""
    behind = ancestors(graph, name)
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in behind}
    for sparse in graph.sparse_initializer:
        if sparse.values.name in behind:
            dense = dense_of(sparse)
            places = np.flatnonzero(dense.reshape(-1).view(f"u{dense.itemsize}"))
            found[sparse.values.name] = dense.reshape(-1)[places]
            found[f"{sparse.values.name}/indices"] = places
            found[f"{sparse.values.name}/shape"] = np.array(sparse.dims)
    return {part.removeprefix(name).removeprefix("/"): array for part, array in found.items()}


def ancestors(graph: onnx.GraphProto, name: str) -> set[str]:
    """Give the names of all values from which a value is computed, itself included."""
    makers = {output: node for node in graph.node for output in node.output}
    found, waiting = set(), [name]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(makers[each].input if each in makers else ())
    return found


def _remove(graph: onnx.GraphProto, names: set[str]) -> None:
    """Delete the values of these names, and the operators that make them."""
    delete(graph.node, lambda node: bool(names & set(node.output)))
    delete(graph.initializer, lambda tensor: tensor.name in names)
    delete(graph.sparse_initializer, lambda sparse: sparse.values.name in names)
    delete(graph.value_info, lambda value: value.name in names)


def dense_of(sparse: onnx.SparseTensorProto) -> Array:
    """Give the array of a sparse tensor, its indices linear or one column per axis."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    shape = tuple(sparse.dims)
    places = np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices
    flat = np.zeros(int(np.prod(shape)), dtype=values.dtype)
    flat[places] = values
    return flat.reshape(shape)
