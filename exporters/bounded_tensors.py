"""Tensors of untrusted files: sizes are checked, in exact integers, before memory is allocated."""

import os
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import SparseTensorProto, TensorProto, helper, numpy_helper

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters.protobuf_walk import parts_of_type

Array = NDArray[Any]
LIMIT = "RIGL_COMPRESS_MAX_DECODED_BYTES"
ALWAYS_ALLOWED = 2**28  # 256 MiB: layers of zeros take few bytes in a file
LARGEST_RATIO = 1000  # no useful network is sparser than one value in a thousand
MOST_AXES = 64  # of an array of numpy; the product of a million numbers takes minutes
LARGEST_DECODED = 2**31 - 1  # the plain model has to fit into one protobuf message
_KNOWN = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
# Bits of types smaller than a byte.
_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model: initializers, parts of sparse ones, attributes, in all graphs and functions."""
    return parts_of_type(model, TensorProto)


def array_of(tensor: TensorProto) -> Array:
    """Return the array of a tensor; raise `InputError` if it does not hold as many elements as it declares."""
    check_stored(tensor)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise InputError(f"tensor {tensor.name!r} cannot be read ({one_line(error)}): export the model again") from None


def check_stored(tensor: TensorProto) -> None:
    """Raise `InputError` for a tensor whose shape and type need another number of bytes than it has."""
    if tensor.data_type not in _KNOWN:
        raise InputError(f"tensor {tensor.name!r} has the unknown data type {tensor.data_type}: update onnx")
    if tensor.data_location == TensorProto.EXTERNAL:
        raise InputError(f"tensor {tensor.name!r} is in another file: open the model from its path")
    if tensor.HasField("segment"):
        raise InputError(f"tensor {tensor.name!r} is a segment of a larger one, which is not supported: store it whole")
    count = count_of(tensor)
    field = "raw_data" if tensor.HasField("raw_data") else helper.tensor_dtype_to_field(tensor.data_type)
    wanted = bytes_for(count, tensor.data_type) if field == "raw_data" else _entries(count, tensor.data_type)
    found = len(getattr(tensor, field))
    if found != wanted or (field == "raw_data" and tensor.data_type == TensorProto.STRING):
        shape = "×".join(map(str, tensor.dims)) or "scalar"
        raise InputError(
            f"tensor {tensor.name!r} of shape {shape} has {found:,} entries of {field}, expected {wanted:,}: "
            "the file is damaged, export the model again"
        )


def count_of(tensor: TensorProto | SparseTensorProto) -> int:
    """Return the number of elements of a tensor, as an exact integer."""
    if len(tensor.dims) > MOST_AXES:
        raise InputError(
            f"a tensor has {len(tensor.dims):,} axes, expected at most {MOST_AXES}: export the model again"
        )
    if any(axis < 0 for axis in tensor.dims):
        raise InputError(f"a tensor has the shape {list(tensor.dims)}, expected no negative length: export it again")
    return prod(tensor.dims)


def bytes_for(count: int, data_type: int) -> int:
    """Return the bytes of so many elements of a type.

    >>> bytes_for(3, TensorProto.FLOAT), bytes_for(3, TensorProto.INT4)
    (12, 2)
    """
    if data_type == TensorProto.STRING:
        return count
    bits = _BITS.get(TensorProto.DataType.Name(data_type))
    return -(-count * bits // 8) if bits else count * np.dtype(helper.tensor_dtype_to_np_dtype(data_type)).itemsize


def _entries(count: int, data_type: int) -> int:
    """Return the entries that so many elements take in the typed field of a tensor."""
    packed = _BITS.get(TensorProto.DataType.Name(data_type), 8) <= 4  # several to an entry
    return bytes_for(count, data_type) if packed else count * (2 if data_type in _COMPLEX else 1)


def check_model_sizes(model: onnx.ModelProto) -> None:
    """Raise `InputError` for tensors that do not hold what they declare, or are too large once densified."""
    for tensor in all_tensors(model):
        check_stored(tensor)
    sparse = sum(_dense_bytes(each) for each in parts_of_type(model, SparseTensorProto))
    check_decoded(sparse + sum(_filled(model.graph)), model)


def check_decoded(size: int, model: onnx.ModelProto) -> None:
    """Raise `InputError` if the densified tensors of a model, of so many bytes, would exceed the limit."""
    if size > ALWAYS_ALLOWED and size > (limit := decoded_limit(model)):
        raise InputError(
            f"the model's tensors take {size:,} bytes once they are densified, {limit:,} are allowed: "
            f"if you trust the file, set {LIMIT}"
        )


def decoded_limit(model: onnx.ModelProto) -> int:
    """Return how many bytes the densified tensors of a model may take: as set, or in proportion to its size."""
    value = os.environ.get(LIMIT, "")
    if value:
        if not (value.isascii() and value.isdigit()):
            raise InputError(f"{LIMIT} is {value!r}, expected a number of bytes such as {LARGEST_DECODED}")
        return int(value)
    return min(LARGEST_DECODED, max(ALWAYS_ALLOWED, LARGEST_RATIO * int(model.ByteSize())))


def _dense_bytes(sparse: SparseTensorProto) -> int:
    return bytes_for(count_of(sparse), sparse.values.data_type) if sparse.values.data_type in _KNOWN else 0


def _filled(graph: onnx.GraphProto) -> Iterator[int]:
    """Yield the bytes of the outputs of operators whose size is a constant, at eight per element."""
    sizes = {each.name: each for each in graph.initializer if each.data_type == TensorProto.INT64}
    shape_inputs = {"ConstantOfShape": 0, "Expand": 1}
    for node in graph.node:
        index = shape_inputs.get(node.op_type, len(node.input))
        name = node.input[index] if index < len(node.input) else ""
        if name in sizes:
            yield 8 * filled_count(sizes[name])


def filled_count(shape: TensorProto) -> int:
    """Return the number of elements of a shape that is stored in a tensor."""
    axes = array_of(shape).reshape(-1)
    if len(axes) > MOST_AXES:
        raise InputError(f"{shape.name!r} is a shape of {len(axes):,} axes, expected at most {MOST_AXES}")
    return prod(max(0, int(axis)) for axis in axes)


def dense_of(sparse: SparseTensorProto) -> Array:
    """Return the array of a sparse tensor; its indices are linear, or have a column per axis."""
    values, indices = array_of(sparse.values), array_of(sparse.indices)
    shape, count = tuple(sparse.dims), count_of(sparse)
    flat = np.zeros(count, dtype=values.dtype)
    flat[_linear(sparse, indices, len(values) if values.ndim == 1 else -1)] = values
    return flat.reshape(shape)


def _linear(sparse: SparseTensorProto, indices: Array, count: int) -> Array:
    """Return the linear indices of a sparse tensor's values; raise `InputError` where ONNX Runtime would refuse."""
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
            f"the sparse tensor {sparse.values.name!r} has indices outside its shape {list(shape)}: "
            "export the model again"
        )
    return np.ravel_multi_index(tuple(indices.astype(np.int64).T), shape) if by_axis else indices
