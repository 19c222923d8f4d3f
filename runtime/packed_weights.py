"""Sparse weights as bytes, in the format of the kernels. `native/packed.h` describes it."""

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MAGIC, VERSION = b"RGLS", 1
_HEADER = struct.Struct("<IIIQII")  # after the magic: version, rows, columns, non-zeros, index bytes, zero
SHORT_INDEX_COLUMNS = 65536  # up to this many columns an index has 16 bits


def pack_matrix(matrix: Array) -> NDArray[np.uint8]:
    """Pack the non-zeros of a matrix [rows, columns].

    >>> packed = pack_matrix(np.eye(3, dtype=np.float32))
    >>> packed.nbytes, packed[:4].tobytes()
    (62, b'RGLS')
    """
    rows, columns = matrix.shape
    used = matrix != 0
    counts = np.count_nonzero(used, axis=1)
    flat = np.flatnonzero(used)  # of a flat array, several times as fast as of a matrix
    width = 2 if columns <= SHORT_INDEX_COLUMNS else 4
    header = MAGIC + _HEADER.pack(VERSION, rows, columns, len(flat), width, 0)
    column = flat - np.repeat(np.arange(rows) * columns, counts)
    parts = (
        header,
        counts.astype("<u4").tobytes(),
        matrix[used].astype("<f4").tobytes(),
        column.astype(f"<u{width}").tobytes(),
    )
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def size_of(packed: bytes) -> tuple[int, int, int]:
    """Return the rows, columns and non-zeros in the header of packed weights; zeros if there is no header.

    >>> size_of(pack_matrix(np.eye(3, 5, dtype=np.float32)).tobytes()), size_of(b"RGLS")
    ((3, 5, 3), (0, 0, 0))
    """
    if len(packed) < _HEADER.size + len(MAGIC) or not packed.startswith(MAGIC):
        return 0, 0, 0
    _, rows, columns, nonzeros, _, _ = _HEADER.unpack_from(packed, len(MAGIC))
    return rows, columns, nonzeros


def conv_matrix(weight: Array, groups: int = 1) -> Array:
    """Return a filter [outputs, inputs / groups, ...] as a matrix over all inputs, with zeros for other groups.

    >>> conv_matrix(np.array([[[[1.0]]], [[[2.0]]]]), groups=2)
    array([[1., 0.],
           [0., 2.]])
    """
    outputs = len(weight)
    if groups == 1:
        return weight.reshape(outputs, -1)
    full = np.zeros((outputs, groups, weight[0].size), dtype=weight.dtype)
    group = np.arange(outputs) // (outputs // groups)
    full[np.arange(outputs), group] = weight.reshape(outputs, -1)
    return full.reshape(outputs, -1)
