"""The way back: the plain model of an encoded one, bit by bit as the runtime rebuilds it.

The metadata say how a tensor was encoded; the operators decide what it is. A tensor is decoded here only where encoding
it again gives exactly the constants and operators that stand in the file. Whatever differs is left as it is: ONNX
Runtime computes it.
"""

import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from rigl_compress.exporters.encodings import ENCODINGS, Array, Encoded, Parts, joined
from rigl_compress.exporters.indices import NAME as STEPS
from rigl_compress.exporters.indices import decode_indices, encode_indices
from rigl_compress.exporters.messages import parts_of_type
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.pattern import Definitions, names_of
from rigl_compress.exporters.signs import NAME as SIGNED
from rigl_compress.exporters.signs import with_signs, without_signs
from rigl_compress.exporters.sparsify import METADATA, metadata_of
from rigl_compress.exporters.tensors import array_of, check_decoded, check_model_sizes, dense_of
from rigl_compress.exporters.values import VALUES
from rigl_compress.models.errors import InputError

_NUMBER = 8  # bytes, at most


@dataclass(frozen=True)
class Rebuilt:
    """A tensor that operators rebuild: its array, and what stands in the file for it."""

    array: Array
    label: str
    encoded: Encoded


def restore(model: onnx.ModelProto) -> onnx.ModelProto:
    """Give a copy with plain initializers; sparse ones from elsewhere are made dense too.

    A tensor that is not rebuilt as the metadata say stays as it is, with a warning.
    """
    check_model_sizes(model)
    found, left = rebuilt_tensors(model)
    if left:
        warnings.warn(
            f"{', '.join(map(repr, left))}: not rebuilt as the metadata say, so it is left to ONNX Runtime and its "
            "zeros are not used; export the model again from its source",
            stacklevel=2,
        )
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    _remove(plain, found)
    arrays = {name: each.array for name, each in found.items()}
    arrays |= {sparse.values.name: dense_of(sparse) for sparse in plain.graph.sparse_initializer}
    del plain.graph.sparse_initializer[:]
    for name, array in arrays.items():
        plain.graph.initializer.append(numpy_helper.from_array(array, name))
    kept = {entry.key: entry.value for entry in plain.metadata_props if entry.key != METADATA}
    del plain.metadata_props[:]
    onnx.helper.set_model_props(plain, kept)
    return plain


def rebuilt_tensors(model: onnx.ModelProto) -> tuple[dict[str, Rebuilt], list[str]]:
    """Give the tensors that operators rebuild exactly as the metadata say, and the names of those that they do not."""
    labels = metadata_of(model).get("tensors", {})
    known = Definitions(model)
    check_decoded(sum(_size(known, name, label) for name, label in labels.items()), model)
    found = {name: each for name, label in labels.items() if (each := _rebuilt(known, name, label)) is not None}
    return found, [name for name in labels if name not in found]


def _size(known: Definitions, name: str, label: str) -> int:
    """Give the most bytes that a tensor can take, from the shape that is written for it."""
    _, _, values = str(label).partition("+")
    shape = known.initializers.get(f"{name}/{values}/shape" if values else f"{name}/shape")
    return _NUMBER * prod(max(0, int(axis)) for axis in array_of(shape).reshape(-1)) if shape is not None else 0


def _rebuilt(known: Definitions, name: str, label: str) -> Rebuilt | None:
    """Decode a tensor and encode it again; None unless the file holds just that."""
    try:
        array, encoded = _steps(known, name) if label == STEPS else _decoded(known, name, label)
    except (KeyError, ValueError, IndexError, TypeError, OverflowError, InputError):
        return None
    return Rebuilt(array, label, encoded) if encoded.nodes and known.hold(encoded) else None


def _steps(known: Definitions, name: str) -> tuple[Array, Encoded]:
    array = decode_indices(_parts(known, name, ("steps",)))
    encoded = encode_indices(name, array)
    if encoded is None:
        raise ValueError("no ascending indices")
    return array, encoded


def _decoded(known: Definitions, name: str, label: str) -> tuple[Array, Encoded]:
    encoding, _, values = label.partition("+")
    inner = f"{name}/{values}" if values else name
    way = ENCODINGS[encoding]
    parts = _parts(known, inner, way.parts)
    shape = parts["shape"] if "shape" in parts else np.array(parts[""].shape)
    array = way.decode(parts, tuple(int(axis) for axis in shape))
    wide, around = _widened(known, name, array, values) if values else (array, Encoded())
    return wide, joined(way.encode(inner, array), around)


def _widened(known: Definitions, name: str, array: Array, values: str) -> tuple[Array, Encoded]:
    """Make the tensor of the narrower one, and give the operators that do so in the file."""
    if values == SIGNED:
        wide = with_signs(array, _parts(known, name, ("negative",)))
        again = without_signs(name, wide)
        if again is None or again.array.tobytes() != array.tobytes():
            raise ValueError("signs of what is not zero")
        return wide, again.around
    way = VALUES[values]
    parts = _parts(known, name, way.parts)
    if array.dtype != way.kind:
        raise ValueError(f"{array.dtype} is not {values}")
    return way.widen(array, parts), way.around(name, parts)


def _parts(known: Definitions, name: str, wanted: tuple[str, ...]) -> Parts:
    """Give the arrays from which a tensor is rebuilt, by their names within its own."""
    if "indices" in wanted:
        dense = dense_of(known.sparse[name])
        places = np.flatnonzero(dense.reshape(-1).view(f"u{dense.itemsize}"))
        return {"": dense.reshape(-1)[places], "indices": places, "shape": np.array(dense.shape)}
    return {part: array_of(known.initializers[f"{name}/{part}" if part else name]) for part in wanted}


def _remove(model: onnx.ModelProto, found: Mapping[str, Rebuilt]) -> None:
    """Delete what rebuilds these tensors, as far as nothing else uses it."""
    graph, own = model.graph, {name for each in found.values() for name in names_of(each.encoded)}
    delete(graph.node, lambda node: bool(node.output) and node.output[0] in found)
    uses = Counter(name for node in parts_of_type(model, NodeProto) for name in node.input)
    uses.update(value.name for each in parts_of_type(model, onnx.GraphProto) for value in each.output)

    def unused(node: NodeProto) -> bool:
        gone = own.issuperset(node.output) and not any(uses[name] for name in node.output)
        uses.subtract(node.input if gone else ())
        return gone

    delete(graph.node, unused)  # from the end: those that use a value go before the one that makes it
    gone = {name for name in own if not uses[name]} | set(found)
    delete(graph.initializer, lambda tensor: tensor.name in gone)
    delete(graph.sparse_initializer, lambda sparse: sparse.values.name in gone)
    delete(graph.value_info, lambda value: value.name in gone)
