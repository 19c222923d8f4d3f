"""Tensors from files that can come from anywhere: sizes are compared, in whole numbers, before memory is taken."""

import os
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

from rigl_compress.exporters.messages import parts_of_type
from rigl_compress.models.errors import InputError

Array = NDArray[Any]
LIMIT = "RIGL_COMPRESS_MAX_DECODED_BYTES"
ALWAYS_ALLOWED = 2**28  # 256 MiB: layers of zeros take next to nothing in a file
LARGEST_RATIO = 1000  # one value in a thousand is sparser than any network of use
LARGEST_DECODED = 2**31 - 1  # the plain model must fit into one protobuf message
_KNOWN = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
# Types of less than a byte.
_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Give every tensor of a model: initializers, parts of sparse ones, attributes, in all graphs and functions."""
    return parts_of_type(model, TensorProto)


def array_of(tensor: TensorProto) -> Array:
    """Give the array of a tensor that holds as many numbers as it declares; refuse any other."""
    check_stored(tensor)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise InputError(f"tensor {tensor.name!r} cannot be read ({_line(error)}): export the model again") from None


def check_stored(tensor: TensorProto) -> None:
    """Refuse a tensor whose shape and type ask for another number of bytes than are there."""
    if tensor.data_type not in _KNOWN:
        raise InputError(f"tensor {tensor.name!r} has the unknown data type {tensor.data_type}; update onnx")
    if tensor.data_location == TensorProto.EXTERNAL:
        raise InputError(f"tensor {tensor.name!r} is in another file: open the model by its path")
    count = count_of(tensor)
    field = "raw_data" if tensor.HasField("raw_data") else helper.tensor_dtype_to_field(tensor.data_type)
    wanted = bytes_for(count, tensor.data_type) if field == "raw_data" else _entries(count, tensor.data_type)
    found = len(getattr(tensor, field))
    if found != wanted or (field == "raw_data" and tensor.data_type == TensorProto.STRING):
        shape = "×".join(map(str, tensor.dims)) or "one number"
        raise InputError(
            f"tensor {tensor.name!r} of shape {shape} needs {wanted:,} entries of {field}, and has {found:,}: "
            "the file is damaged, export the model again"
        )


def count_of(tensor: TensorProto | SparseTensorProto) -> int:
    """Give the places of a tensor, a whole number of any size."""
    if any(axis < 0 for axis in tensor.dims):
        raise InputError(f"a tensor has the shape {list(tensor.dims)}: no axis can be shorter than 0")
    return prod(tensor.dims)


def bytes_for(count: int, data_type: int) -> int:
    """Give the bytes of so many numbers of a type.

    >>> bytes_for(3, TensorProto.FLOAT), bytes_for(3, TensorProto.INT4)
    (12, 2)
    """
    if data_type == TensorProto.STRING:
        return count
    bits = _BITS.get(TensorProto.DataType.Name(data_type))
    return -(-count * bits // 8) if bits else count * np.dtype(helper.tensor_dtype_to_np_dtype(data_type)).itemsize


def _entries(count: int, data_type: int) -> int:
    """Give how many entries of its own field so many numbers take."""
    packed = _BITS.get(TensorProto.DataType.Name(data_type), 8) <= 4  # several to an entry
    return bytes_for(count, data_type) if packed else count * (2 if data_type in _COMPLEX else 1)


def check_model_sizes(model: onnx.ModelProto) -> None:
    """Refuse a model with tensors that do not hold what they declare, or that grow too large when it is opened."""
    for tensor in all_tensors(model):
        check_stored(tensor)
    sparse = sum(_dense_bytes(each) for each in parts_of_type(model, SparseTensorProto))
    check_decoded(sparse + sum(_filled(model.graph)), model)


def check_decoded(size: int, model: onnx.ModelProto) -> None:
    """Refuse a model whose tensors take so many bytes once they are rebuilt, before they are."""
    if size > ALWAYS_ALLOWED and size > (limit := decoded_limit(model)):
        raise InputError(
            f"the model's tensors take {size:,} bytes once they are rebuilt, and {limit:,} are allowed: "
            f"if you trust the file, set {LIMIT}"
        )


def decoded_limit(model: onnx.ModelProto) -> int:
    """Give how many bytes a model may take when its tensors are rebuilt: what is set, or what suits its size."""
    wish = os.environ.get(LIMIT, "")
    if wish:
        if not (wish.isascii() and wish.isdigit()):
            raise InputError(f"{LIMIT} is {wish!r}: give a number of bytes, such as {LARGEST_DECODED}")
        return int(wish)
    return min(LARGEST_DECODED, max(ALWAYS_ALLOWED, LARGEST_RATIO * int(model.ByteSize())))


def _dense_bytes(sparse: SparseTensorProto) -> int:
    return bytes_for(count_of(sparse), sparse.values.data_type) if sparse.values.data_type in _KNOWN else 0


def _filled(graph: onnx.GraphProto) -> Iterator[int]:
    """Give the bytes of what operators fill whose size stands in the file, at eight a number."""
    sizes = {each.name: each for each in graph.initializer if each.data_type == TensorProto.INT64}
    places = {"ConstantOfShape": 0, "Expand": 1}
    for node in graph.node:
        place = places.get(node.op_type, len(node.input))
        name = node.input[place] if place < len(node.input) else ""
        if name in sizes:
            yield 8 * prod(max(0, int(axis)) for axis in array_of(sizes[name]).reshape(-1))


def dense_of(sparse: SparseTensorProto) -> Array:
    """Give the array of a sparse tensor, its indices linear or one column per axis, all within the shape."""
    values, indices = array_of(sparse.values), array_of(sparse.indices)
    shape, count = tuple(sparse.dims), count_of(sparse)
    flat = np.zeros(count, dtype=values.dtype)
    flat[_linear(sparse, indices, len(values) if values.ndim == 1 else -1)] = values
    return flat.reshape(shape)


def _linear(sparse: SparseTensorProto, indices: Array, count: int) -> Array:
    """Give the places of a sparse tensor's values in a row; refuse what ONNX Runtime would."""
    shape = tuple(sparse.dims)
    by_axis = indices.ndim == 2 and indices.shape == (count, len(shape))
    if indices.dtype.kind != "i" or not (by_axis or indices.shape == (count,)):
        raise InputError(
            f"the sparse tensor {sparse.values.name!r} has {count} values and indices of shape "
            f"{list(indices.shape)}: export the model again"
        )
    highest = np.array(shape if by_axis else [count_of(sparse)], dtype=np.int64)
    if np.any(indices < 0) or np.any(indices >= highest):
        raise InputError(
            f"the sparse tensor {sparse.values.name!r} has indices outside of its shape {list(shape)}: "
            "export the model again"
        )
    return np.ravel_multi_index(tuple(indices.astype(np.int64).T), shape) if by_axis else indices


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
