"""The bytes of an ONNX model without the values of its large weights, which stay where they are until they are needed.

Parsing a model copies its weights several times. Only the outer fields of the protobuf message are walked here, and the
values of large initializers are skipped. Anything unusual raises `ScanError`: the caller parses such a model whole.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from onnx import TensorProto

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.bounded_tensors import bytes_for, count_of

# Fields of ModelProto, GraphProto and TensorProto.
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
LARGE = 4096  # bytes; smaller constants may determine shapes
NUMBERS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT8})


class ScanError(ValueError):
    """A message that is not stored in the usual way, or is damaged."""


@dataclass(frozen=True)
class Place:
    """The position of a weight's values in the file."""

    tensor: TensorProto  # without values
    offset: int
    size: int


@dataclass(frozen=True)
class _Field:
    number: int
    kind: int
    header: bytes
    size: int  # of what follows the header


def scan_model(file: BinaryIO) -> tuple[bytes, list[Place]]:
    """Return a model without the values of its large initializers, and where these are in the file.

    An initializer without values is marked as external data without a location.
    """
    found: list[Place] = []
    content = _replaced(file, _end(file), {_GRAPH: lambda size: _graph(file, size, found)})
    names = [place.tensor.name for place in found]
    if len(set(names)) != len(names):
        raise ScanError("two initializers of one name")
    return content, found


def _graph(file: BinaryIO, size: int, found: list[Place]) -> bytes:
    fields = _fields(file, file.tell() + size)
    return b"".join(_written(each, _initializer(file, each, found)) for each in fields)


def _initializer(file: BinaryIO, each: _Field, found: list[Place]) -> bytes:
    """Return the content of a field of a graph; for a large initializer without its values."""
    start = file.tell()
    if each.number == _INITIALIZER and each.kind == _BYTES and each.size >= LARGE:
        place = _place(file, start + each.size)
        if place is not None:
            found.append(place)
            return bytes(place.tensor.SerializeToString())
    file.seek(start)
    return _read(file, each.size)


def _place(file: BinaryIO, end: int) -> Place | None:
    """Return where the values of a tensor are, if they are raw bytes of the right number and of a plain type."""
    offset, size, parts = 0, 0, []
    for each in _fields(file, end):
        if each.number != _RAW_DATA:
            parts.append(each.header + _read(file, each.size))
            continue
        if offset or each.kind != _BYTES:
            return None
        offset, size = file.tell(), each.size
        file.seek(size, os.SEEK_CUR)
    tensor = TensorProto.FromString(b"".join(parts))
    return Place(hollow(tensor), offset, size) if size >= LARGE and _is_plain(tensor, size) else None


def _is_plain(tensor: TensorProto, size: int) -> bool:
    known = {"dims", "data_type", "name", "doc_string", "data_location"}
    usual = {field.name for field, _ in tensor.ListFields()} <= known and isinstance(tensor.name, str)
    if not usual or not tensor.name or tensor.data_location != TensorProto.DEFAULT or tensor.data_type not in NUMBERS:
        return False
    try:
        return bytes_for(count_of(tensor), tensor.data_type) == size
    except InputError:
        return False


def hollow(tensor: TensorProto) -> TensorProto:
    """Return a tensor of the same name, shape and type without values, marked as external data without a location."""
    return TensorProto(
        name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, data_location=TensorProto.EXTERNAL
    )


def is_hollow(tensor: TensorProto) -> bool:
    """Check for a tensor without values."""
    return tensor.data_location == TensorProto.EXTERNAL and not tensor.external_data


def _replaced(file: BinaryIO, end: int, parts: dict[int, Callable[[int], bytes]]) -> bytes:
    """Copy a message, with some of its fields replaced, which may be there only once."""
    written, seen = [], set()
    for each in _fields(file, end):
        replacement = parts.get(each.number)
        if replacement is None:
            written.append(each.header + _read(file, each.size))
            continue
        if each.number in seen or each.kind != _BYTES:
            raise ScanError(f"field {each.number} twice, or of another type")
        seen.add(each.number)
        written.append(_written(each, replacement(each.size)))
    return b"".join(written)


def _written(each: _Field, content: bytes) -> bytes:
    if each.kind != _BYTES or len(content) == each.size:
        return each.header + content
    return _varint_bytes(each.number << 3 | _BYTES) + _varint_bytes(len(content)) + content


def _fields(file: BinaryIO, end: int) -> Iterator[_Field]:
    """Yield the fields of a message; whoever iterates reads or skips the content of each."""
    while (start := file.tell()) < end:
        key = _varint(file)
        number, kind = key >> 3, key & 7
        size = _content_size(file, kind)
        here = file.tell()
        if not number or here + size > end:
            raise ScanError("a field beyond the end of its message")
        file.seek(start)
        yield _Field(number, kind, _read(file, here - start), size)
        if file.tell() != here + size:
            raise ScanError("a field of another size")
    if start != end:
        raise ScanError("a message beyond its end")


def _content_size(file: BinaryIO, kind: int) -> int:
    """Return the size of what follows the header of a field; a number counts as part of the header."""
    if kind == _BYTES:
        return _varint(file)
    if kind == _VARINT:
        _varint(file)
        return 0
    if kind in (_FIXED32, _FIXED64):
        return 4 if kind == _FIXED32 else 8
    raise ScanError(f"wire type {kind}")


def _varint(file: BinaryIO) -> int:
    value = 0
    for position in range(_LONGEST_VARINT):
        byte = file.read(1)
        if not byte:
            raise ScanError("the end of the file")
        value |= (byte[0] & 127) << 7 * position
        if byte[0] < 128:
            return value
    raise ScanError("a number that is too long")


def _varint_bytes(value: int) -> bytes:
    """Write a number as protobuf does.

    >>> _varint_bytes(300).hex()
    'ac02'
    """
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _read(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise ScanError("the end of the file")
    return content


def _end(file: BinaryIO) -> int:
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    return end
