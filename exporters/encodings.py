"""Encodings of weight tensors in ONNX files: dense, or as non-zeros that the runtime densifies at load.

Every encoding is lossless. Zeros are distinguished by their bits: -0.0 is a value. All encodings but `dense` and
`sparse` are standard operators on constants, which ONNX Runtime folds when it opens the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.core.registry import Registry, instance_of

Array = NDArray[Any]
LARGEST_GAP = 255  # of one byte
SHARED = "rigl/"  # prefix of the names of constants that all tensors of a file share


@dataclass(frozen=True)
class Encoded:
    """The parts of a graph that encode one tensor."""

    initializers: tuple[TensorProto, ...] = ()
    sparse: tuple[onnx.SparseTensorProto, ...] = ()
    nodes: tuple[onnx.NodeProto, ...] = ()
    shapes: tuple[onnx.ValueInfoProto, ...] = ()  # the runtime needs these shapes to fold the operators

    @property
    def nbytes(self) -> int:
        """The bytes of all parts in the file, without the overhead of protobuf for each entry."""
        parts: list[Any] = [*self.initializers, *self.sparse, *self.nodes, *self.shapes]
        return sum(part.ByteSize() for part in parts)


def joined(*parts: Encoded) -> Encoded:
    """Return several parts of a graph as one, in their order; shared parts once.

    >>> node = helper.make_node("Neg", ["x"], ["y"])
    >>> len(joined(Encoded(nodes=(node,)), Encoded(nodes=(node,))).nodes)
    1
    """
    return Encoded(
        initializers=tuple({tensor.name: tensor for part in parts for tensor in part.initializers}.values()),
        sparse=tuple(tensor for part in parts for tensor in part.sparse),
        nodes=tuple({node.output[0]: node for part in parts for node in part.nodes}.values()),
        shapes=tuple(shape for part in parts for shape in part.shapes),
    )


# Stored arrays of an encoded tensor by name: the input of a decoder.
Parts = Mapping[str, Array]


@dataclass(frozen=True)
class Encoding:
    """A way to store a tensor: `encode(name, array)`, and `decode(parts, shape)` that restores every bit.

    `parts` are the names of the stored arrays below the tensor's name: "" is the tensor itself, `shape` its shape.
    """

    name: str
    encode: Callable[[str, Array], Encoded]
    decode: Callable[[Parts, tuple[int, ...]], Array]
    about: str
    parts: tuple[str, ...]


def nonzero_bits(array: Array) -> NDArray[np.bool_]:
    """Mark every element that is not +0: -0.0, NaN and subnormal numbers are values.

    >>> nonzero_bits(np.array([0.0, -0.0, np.nan, 1.0], dtype=np.float32)).tolist()
    [False, True, True, True]
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    found: NDArray[np.bool_] = flat.view(f"u{flat.itemsize}") != 0
    return found


def _tensor(name: str, array: Array) -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def numbers(name: str, values: Sequence[int]) -> TensorProto:
    """Return a vector of integers as a tensor."""
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


# dense


def encode_dense(name: str, array: Array) -> Encoded:
    """Encode as a plain initializer."""
    return Encoded(initializers=(_tensor(name, array),))


def decode_dense(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Return the stored array."""
    return parts[""].reshape(shape)


# sparse: ONNX's own sparse initializer, 12 bytes per value


def encode_sparse(name: str, array: Array) -> Encoded:
    """Encode as a sparse initializer with linear, sorted int64 indices, as `onnx.checker` requires."""
    places = np.flatnonzero(nonzero_bits(array))
    values = _tensor(name, array.reshape(-1)[places])
    indices = _tensor(f"{name}/indices", places.astype(np.int64))
    return Encoded(sparse=(helper.make_sparse_tensor(values, indices, list(array.shape)),))


def decode_sparse(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Scatter the values to their indices."""
    return _scattered(parts[""], parts["indices"], shape)


def _scattered(values: Array, places: Array, shape: tuple[int, ...]) -> Array:
    flat = np.zeros(prod(shape), dtype=values.dtype)
    flat[places] = values.reshape(-1)
    return flat.reshape(shape)


def _rebuilt(name: str, array: Array, values: Array) -> Encoded:
    """Return the operators that scatter values into zeros at computed indices and reshape the tensor.

    Tensors of one size share their zeros: a file opens faster if they are filled once.
    """
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    zeros = f"{SHARED}zeros/{array.dtype}/{array.size}"
    nodes = (
        helper.make_node("ConstantOfShape", [f"{zeros}/size"], [zeros], value=helper.make_tensor("", kind, [1], [0])),
        helper.make_node("ScatterElements", [zeros, f"{name}/places", f"{name}/values"], [f"{name}/flat"], axis=0),
        helper.make_node("Reshape", [f"{name}/flat", f"{name}/shape"], [name]),
    )
    constants = (numbers(f"{zeros}/size", [array.size]), numbers(f"{name}/shape", array.shape))
    return Encoded(initializers=(_tensor(f"{name}/values", values), *constants), nodes=nodes)


# gap8: a byte for the distance to the next value


def gaps(places: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the distances between indices as bytes, and the indices that they visit.

    A longer distance is split into steps of 255, which visit zeros.

    >>> steps, visited = gaps(np.array([3, 4, 600]))
    >>> steps.tolist(), visited.tolist()
    ([3, 1, 255, 255, 86], [3, 4, 259, 514, 600])
    """
    distances = np.diff(places, prepend=0)
    strides = np.maximum(distances - 1, 0) // LARGEST_GAP
    steps = np.full(len(distances) + int(strides.sum()), LARGEST_GAP, dtype=np.int64)
    ends = np.cumsum(strides + 1) - 1
    steps[ends] = distances - strides * LARGEST_GAP
    return steps.astype(np.uint8), np.cumsum(steps)


def encode_gap8(name: str, array: Array) -> Encoded:
    """Encode as values and byte distances between them: 5 bytes per value in float32."""
    steps, visited = gaps(np.flatnonzero(nonzero_bits(array)))
    axis = helper.make_tensor(f"{SHARED}axis", TensorProto.INT32, [], [0])
    places = Encoded(
        initializers=(_tensor(f"{name}/gaps", steps), axis),
        nodes=(
            helper.make_node("Cast", [f"{name}/gaps"], [f"{name}/steps"], to=TensorProto.INT32),
            helper.make_node("CumSum", [f"{name}/steps", axis.name], [f"{name}/places"]),
        ),
    )
    return joined(places, _rebuilt(name, array, array.reshape(-1)[visited]))


def decode_gap8(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Scatter the values to the cumulative sums of the distances."""
    return _scattered(parts["values"], np.cumsum(parts["gaps"], dtype=np.int64), shape)


# bitmask: a bit per element, the paper's convention


def packed_bits(marks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Pack marks into bits: bit i of byte b is element i·⌈N/8⌉ + b.

    In this order the runtime shifts long rows instead of groups of eight.

    >>> packed_bits(np.array([True, False, False, True])).tolist()
    [[9]]
    """
    planes = np.zeros((8, -(-marks.size // 8)), dtype=np.bool_)
    planes.reshape(-1)[: marks.size] = marks.reshape(-1)
    return np.packbits(planes, axis=0, bitorder="little")


def unpacked(bits: Array, size: int) -> NDArray[np.bool_]:
    """Return the marks of `packed_bits` as a vector."""
    return np.unpackbits(bits, axis=0, bitorder="little").reshape(-1)[:size].astype(np.bool_)


def bit_planes(bits: str, row: str) -> Encoded:
    """Return the operators that unpack bits into a vector of zeros and ones, with up to seven zeros appended."""
    shifts = _tensor(f"{SHARED}shifts", np.arange(7, -1, -1, dtype=np.uint8).reshape(8, 1))
    seven = _tensor(f"{SHARED}seven", np.array(7, dtype=np.uint8))
    flat = numbers(f"{SHARED}row", [-1])
    return Encoded(
        initializers=(shifts, seven, flat),
        nodes=(
            helper.make_node("BitShift", [bits, shifts.name], [f"{bits}/highest"], direction="LEFT"),
            helper.make_node("BitShift", [f"{bits}/highest", seven.name], [f"{bits}/planes"], direction="RIGHT"),
            helper.make_node("Reshape", [f"{bits}/planes", flat.name], [row]),
        ),
    )


def encode_bitmask(name: str, array: Array) -> Encoded:
    """Encode as a bit per element and a vector of values: 4·nnz + N/8 bytes in float32."""
    nonzero = nonzero_bits(array)
    places = Encoded(
        initializers=(_tensor(f"{name}/bits", packed_bits(nonzero)),),
        nodes=(
            helper.make_node("NonZero", [f"{name}/row"], [f"{name}/found"]),
            helper.make_node("Reshape", [f"{name}/found", f"{SHARED}row"], [f"{name}/places"]),
        ),
        # Without its shape the output of NonZero has an unknown size, and its users are not folded.
        shapes=(helper.make_tensor_value_info(f"{name}/found", TensorProto.INT64, [1, int(nonzero.sum())]),),
    )
    row = bit_planes(f"{name}/bits", f"{name}/row")
    return joined(row, places, _rebuilt(name, array, array.reshape(-1)[nonzero]))


def decode_bitmask(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Scatter the values to the bits that are set."""
    return _scattered(parts["values"], np.flatnonzero(unpacked(parts["bits"], prod(shape))), shape)


ENCODINGS: Registry[Encoding] = Registry(
    "encoding", group="rigl_compress.encodings", adapt=instance_of(Encoding, "encoding")
)


def register_encoding(encoding: Encoding) -> Encoding:
    """Register an encoding under its name. A runtime that has to rebuild the tensors by itself looks for it there."""
    return ENCODINGS.register(encoding.name, encoding)


for _encoding in (
    Encoding("dense", encode_dense, decode_dense, "every weight", ("",)),
    Encoding("sparse", encode_sparse, decode_sparse, "ONNX sparse initializers: 12 bytes a non-zero", ("", "indices")),
    Encoding(
        *("bitmask", encode_bitmask, decode_bitmask, "a bit a place and the non-zeros: the paper's convention"),
        ("bits", "values", "shape"),
    ),
    Encoding(
        *("gap8", encode_gap8, decode_gap8, "a byte to the next non-zero: 5 bytes a non-zero"),
        ("gaps", "values", "shape"),
    ),
):
    register_encoding(_encoding)
