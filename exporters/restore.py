"""Restoring the plain model of an encoded one, bit by bit as the runtime rebuilds it.

The metadata name the encoding of a tensor, but the operators of the file determine its value. A tensor is decoded here
only if encoding it again results in exactly the constants and operators of the file. Others are left to ONNX Runtime.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from rigl_compress.core.errors import InputError
from rigl_compress.core.trust import FromFile
from rigl_compress.exporters.bounded_tensors import array_of, check_decoded, check_model_sizes, dense_of, filled_count
from rigl_compress.exporters.encoding_patterns import Definitions, names_of
from rigl_compress.exporters.encodings import ENCODINGS, Array, Encoded, Parts, joined
from rigl_compress.exporters.index_encoding import NAME as STEPS
from rigl_compress.exporters.index_encoding import decode_indices, encode_indices
from rigl_compress.exporters.negative_zeros import NAME as SIGNED
from rigl_compress.exporters.negative_zeros import with_signs, without_signs
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.protobuf_walk import parts_of_type
from rigl_compress.exporters.sparsify import METADATA, metadata_of
from rigl_compress.exporters.value_precision import VALUES

_NUMBER = 8  # bytes, at most


@dataclass(frozen=True)
class Rebuilt:
    """A tensor that operators rebuild: its array, its label, and its parts in the file."""

    array: Array
    label: str
    encoded: Encoded


def restore(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with dense initializers only; sparse ones of other tools are densified too.

    A tensor whose operators differ from its encoding in the metadata is left as it is, with a warning.
    """
    check_model_sizes(model)
    plain, arrays = restored(model)
    for name, array in arrays.items():
        plain.graph.initializer.append(numpy_helper.from_array(array, name))
    return plain


def restored(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Return a copy without encoded and sparse initializers, and their arrays by name."""
    found, left = rebuilt_tensors(model)
    if left:
        warnings.warn(
            f"{', '.join(map(repr, left))}: the operators differ from the encoding in the metadata, so ONNX Runtime "
            "rebuilds it and its zeros are not used: export the model again from its source",
            stacklevel=3,
        )
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    _remove(plain, found)
    arrays = {name: each.array for name, each in found.items()}
    arrays |= {sparse.values.name: dense_of(sparse) for sparse in plain.graph.sparse_initializer}
    del plain.graph.sparse_initializer[:]
    kept = {entry.key: entry.value for entry in plain.metadata_props if entry.key != METADATA}
    del plain.metadata_props[:]
    onnx.helper.set_model_props(plain, kept)
    return plain, arrays


def rebuilt_tensors(model: onnx.ModelProto) -> tuple[dict[str, Rebuilt], list[str]]:
    """Return the tensors whose operators match the encoding in the metadata, and the names of the others."""
    labels = metadata_of(model).get("tensors", {})
    known = Definitions(model)
    check_decoded(sum(_size(known, name, label) for name, label in labels.items()), model)
    found = {name: each for name, label in labels.items() if (each := _rebuilt(known, name, label)) is not None}
    return found, [name for name in labels if name not in found]


def _size(known: Definitions, name: str, label: str) -> int:
    """Return the most bytes that a tensor can take, from its stored shape."""
    _, _, values = str(label).partition("+")
    shape = known.initializers.get(f"{name}/{values}/shape" if values else f"{name}/shape")
    return _NUMBER * filled_count(shape) if shape is not None else 0


def _rebuilt(known: Definitions, name: str, label: str) -> Rebuilt | None:
    """Decode a tensor and encode it again; return None unless the file has exactly these parts."""
    try:
        array, encoded = _steps(known, name) if label == STEPS else _decoded(known, name, label)
    except (KeyError, ValueError, IndexError, TypeError, OverflowError, InputError):
        return None
    return Rebuilt(array, label, encoded) if encoded.nodes and known.hold(encoded) else None


def _steps(known: Definitions, name: str) -> tuple[Array, Encoded]:
    array = decode_indices(_parts(known, name, ("steps",)))
    encoded = encode_indices(name, array)
    if encoded is None:
        raise ValueError("the indices are not ascending")
    return array, encoded


def _decoded(known: Definitions, name: str, label: str) -> tuple[Array, Encoded]:
    encoding, _, values = label.partition("+")
    inner = f"{name}/{values}" if values else name
    way = ENCODINGS[FromFile(encoding, "the model's metadata")]  # a file never has code imported
    parts = _parts(known, inner, way.parts)
    shape = parts["shape"] if "shape" in parts else np.array(parts[""].shape)
    array = way.decode(parts, tuple(int(axis) for axis in shape))
    wide, around = _widened(known, name, array, values) if values else (array, Encoded())
    return wide, joined(way.encode(inner, array), around)


def _widened(known: Definitions, name: str, array: Array, values: str) -> tuple[Array, Encoded]:
    """Return the tensor of a narrower one, and the operators that rebuild it in the file."""
    if values == SIGNED:
        wide = with_signs(array, _parts(known, name, ("negative",)))
        again = without_signs(name, wide)
        if again is None or again.array.tobytes() != array.tobytes():
            raise ValueError("signs of elements that are not zero")
        return wide, again.around
    kind = VALUES[values]
    parts = _parts(known, name, kind.parts)
    if array.dtype != kind.kind:
        raise ValueError(f"{array.dtype} is not {values}")
    return kind.widen(array, parts), kind.around(name, parts)


def _parts(known: Definitions, name: str, wanted: tuple[str, ...]) -> Parts:
    """Return the arrays from which a tensor is rebuilt, by their names below its own."""
    if "indices" in wanted:
        dense = dense_of(known.sparse[name])
        indices = np.flatnonzero(dense.reshape(-1).view(f"u{dense.itemsize}"))
        return {"": dense.reshape(-1)[indices], "indices": indices, "shape": np.array(dense.shape)}
    return {part: array_of(known.initializers[f"{name}/{part}" if part else name]) for part in wanted}


def _remove(model: onnx.ModelProto, found: Mapping[str, Rebuilt]) -> None:
    """Delete the parts of encoded tensors that nothing else uses."""
    graph, own = model.graph, {name for each in found.values() for name in names_of(each.encoded)}
    delete(graph.node, lambda node: bool(node.output) and node.output[0] in found)
    uses = Counter(name for node in parts_of_type(model, NodeProto) for name in node.input)
    uses.update(value.name for each in parts_of_type(model, onnx.GraphProto) for value in each.output)

    def unused(node: NodeProto) -> bool:
        removed = own.issuperset(node.output) and not any(uses[name] for name in node.output)
        uses.subtract(node.input if removed else ())
        return removed

    delete(graph.node, unused)  # from the end: users of a value before its producer
    removed = {name for name in own if not uses[name]} | set(found)
    delete(graph.initializer, lambda tensor: tensor.name in removed)
    delete(graph.sparse_initializer, lambda sparse: sparse.values.name in removed)
    delete(graph.value_info, lambda value: value.name in removed)
