"""How a weight tensor stands in an ONNX file: plainly, or as non-zeros from which the runtime rebuilds it at load.

Every encoding is lossless for the values it is given, zeros are told apart by their bits (-0.0 is a value), and all but
`dense` and `sparse` are standard operators on constants, which ONNX Runtime folds when it opens the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.models.registry import Registry

Array = NDArray[Any]
LARGEST_GAP = 255  # of one byte
SHARED = "rigl/"  # how the names of constants begin that all tensors of a file share


@dataclass(frozen=True)
class Encoded:
    """What stands in a graph for one tensor."""

    initializers: tuple[TensorProto, ...] = ()
    sparse: tuple[onnx.SparseTensorProto, ...] = ()
    nodes: tuple[onnx.NodeProto, ...] = ()
    shapes: tuple[onnx.ValueInfoProto, ...] = ()  # shapes that the runtime must know in order to fold

    @property
    def nbytes(self) -> int:
        """The bytes of all parts in the file, without the few that the graph spends on each entry."""
        parts: list[Any] = [*self.initializers, *self.sparse, *self.nodes, *self.shapes]
        return sum(part.ByteSize() for part in parts)


def joined(*parts: Encoded) -> Encoded:
    """Give several pieces of a graph as one, in their order; what they share stands there once.

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


# Parts of an encoded tensor by name: what a decoder reads.
Parts = Mapping[str, Array]


@dataclass(frozen=True)
class Encoding:
    """A way to store a tensor: `encode(name, array)`, and `decode(parts, shape)` that gives back every bit.

    `parts` are the names within the tensor's own of what is stored: "" is the tensor itself, `shape` its shape.
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
    """Whole numbers in a row."""
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


# dense


def encode_dense(name: str, array: Array) -> Encoded:
    """A plain initializer."""
    return Encoded(initializers=(_tensor(name, array),))


def decode_dense(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Take the array as it is."""
    return parts[""].reshape(shape)


# sparse: ONNX's own sparse initializer, 12 bytes a value


def encode_sparse(name: str, array: Array) -> Encoded:
    """A sparse initializer with linear, sorted int64 indices: what the checker asks for."""
    places = np.flatnonzero(nonzero_bits(array))
    values = _tensor(name, array.reshape(-1)[places])
    indices = _tensor(f"{name}/indices", places.astype(np.int64))
    return Encoded(sparse=(helper.make_sparse_tensor(values, indices, list(array.shape)),))


def decode_sparse(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Put the values in their places."""
    return _scattered(parts[""], parts["indices"], shape)


def _scattered(values: Array, places: Array, shape: tuple[int, ...]) -> Array:
    flat = np.zeros(prod(shape), dtype=values.dtype)
    flat[places] = values.reshape(-1)
    return flat.reshape(shape)


def _rebuilt(name: str, array: Array, values: Array) -> Encoded:
    """The operators that put values into zeros at computed places and give the tensor its shape.

    Tensors of one size begin with the same zeros: to fill them once makes a file faster to open.
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


# gap8: a byte for the way to the next value


def gaps(places: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Give the steps from one place to the next in bytes, and the places that they visit.

    A longer way is made in strides of 255, which visit places that are zero.

    >>> steps, visited = gaps(np.array([3, 4, 600]))
    >>> steps.tolist(), visited.tolist()
    ([3, 1, 255, 255, 86], [3, 4, 259, 514, 600])
    """
    ways = np.diff(places, prepend=0)
    strides = np.maximum(ways - 1, 0) // LARGEST_GAP
    steps = np.full(len(ways) + int(strides.sum()), LARGEST_GAP, dtype=np.int64)
    ends = np.cumsum(strides + 1) - 1
    steps[ends] = ways - strides * LARGEST_GAP
    return steps.astype(np.uint8), np.cumsum(steps)


def encode_gap8(name: str, array: Array) -> Encoded:
    """Bytes between the values, added up and scattered: 5 bytes a value in float32."""
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
    """Add the gaps up and put the values in their places."""
    return _scattered(parts["values"], np.cumsum(parts["gaps"], dtype=np.int64), shape)


# bitmask: a bit a place, the paper's convention


def packed_bits(marks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Give a bit for every place: bit i of byte b stands for place i·⌈N/8⌉ + b.

    So the runtime shifts long rows and not groups of eight.

    >>> packed_bits(np.array([True, False, False, True])).tolist()
    [[9]]
    """
    planes = np.zeros((8, -(-marks.size // 8)), dtype=np.bool_)
    planes.reshape(-1)[: marks.size] = marks.reshape(-1)
    return np.packbits(planes, axis=0, bitorder="little")


def unpacked(bits: Array, size: int) -> NDArray[np.bool_]:
    """Give the marks of `packed_bits` in a row."""
    return np.unpackbits(bits, axis=0, bitorder="little").reshape(-1)[:size].astype(np.bool_)


def bit_planes(bits: str, row: str) -> Encoded:
    """The operators that make of packed bits a row of zeros and ones, with up to seven zeros more at the end."""
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
    """A bit for every place and the values in a row: 4·nnz + N/8 bytes in float32."""
    alive = nonzero_bits(array)
    places = Encoded(
        initializers=(_tensor(f"{name}/bits", packed_bits(alive)),),
        nodes=(
            helper.make_node("NonZero", [f"{name}/row"], [f"{name}/found"]),
            helper.make_node("Reshape", [f"{name}/found", f"{SHARED}row"], [f"{name}/places"]),
        ),
        # Without its shape the output of NonZero is of unknown size, and nothing behind it is folded.
        shapes=(helper.make_tensor_value_info(f"{name}/found", TensorProto.INT64, [1, int(alive.sum())]),),
    )
    row = bit_planes(f"{name}/bits", f"{name}/row")
    return joined(row, places, _rebuilt(name, array, array.reshape(-1)[alive]))


def decode_bitmask(parts: Parts, shape: tuple[int, ...]) -> Array:
    """Unpack the bits and put the values where they are set."""
    return _scattered(parts["values"], np.flatnonzero(unpacked(parts["bits"], prod(shape))), shape)


ENCODINGS: Registry[Encoding] = Registry("encoding")
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
    ENCODINGS.register(_encoding.name, _encoding)
