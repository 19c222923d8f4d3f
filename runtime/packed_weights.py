"""Sparse weights as bytes, in the format of the kernels. `native/packed.h` describes it."""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
MAGIC = b"RGLS"
PLAIN, NARROW = 1, 2  # versions of the format
FLOAT32, FLOAT16, INT8 = range(3)  # kinds of values
_HEADER = struct.Struct("<IIIQII")  # after the magic: version, rows, columns, non-zeros, index bytes, kind of values
SHORT_INDEX_COLUMNS = 65536  # up to this many columns an index has 16 bits
_SCALES = (1e-30, 1e30)  # of values of 8 bits


def pack_matrix(matrix: Array, scales: Sequence[Array] = ()) -> NDArray[np.uint8]:
    """Pack the non-zeros of a matrix [rows, columns], in as few bits as hold their values exactly.

    Values of 8 bits are multiples of a scale: of one of these, each a number per row or a single one.

    >>> packed = pack_matrix(np.eye(3, dtype=np.float32) / 3)
    >>> packed.nbytes, packed[:4].tobytes()
    (62, b'RGLS')
    >>> pack_matrix(np.eye(3, dtype=np.float32)).nbytes, pack_matrix(np.eye(3, dtype=np.float32), [np.ones(1)]).nbytes
    (56, 65)
    """
    rows, columns = matrix.shape
    used = matrix != 0
    counts = np.count_nonzero(used, axis=1)
    flat = np.flatnonzero(used)  # of a flat array, several times as fast as of a matrix
    width = 2 if columns <= SHORT_INDEX_COLUMNS else 4
    column = flat - np.repeat(np.arange(rows) * columns, counts)
    kind, values = _narrowest(matrix[used].astype(np.float32), counts, scales)
    version = PLAIN if kind == FLOAT32 else NARROW
    parts = (
        MAGIC + _HEADER.pack(version, rows, columns, len(flat), width, kind),
        counts.astype("<u4").tobytes(),
        *values,
        column.astype(f"<u{width}").tobytes(),
    )
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _narrowest(values: Array, counts: Array, scales: Sequence[Array]) -> tuple[int, tuple[bytes, ...]]:
    """Return the kind that holds values in the fewest bits; the bytes of its scales, if it has any, and of values."""
    for scale in scales:
        if scale.size in (1, len(counts)):
            each = np.broadcast_to(scale.reshape(-1), len(counts)).astype("<f4")
            found = _multiples(values, np.repeat(each, counts))
            if found is not None:
                return INT8, (each.tobytes(), found.tobytes())
    if _are_halves(values):
        return FLOAT16, (values.astype("<f2").tobytes(),)
    return FLOAT32, (values.astype("<f4").tobytes(),)


def _multiples(values: Array, scale: Array) -> NDArray[np.int8] | None:
    """Return values in 8 bits as multiples of their scales; None if they are not.

    >>> _multiples(np.float32([0.5, -64]), np.float32([0.5, 0.5])).tolist()
    [1, -128]
    """
    if not (np.isfinite(values).all() and ((scale >= _SCALES[0]) & (scale <= _SCALES[1])).all()):
        return None
    with np.errstate(over="ignore"):
        factors = np.clip(np.rint(values / scale), -128, 127)
    return factors.astype(np.int8) if np.array_equal(factors.astype(np.float32) * scale, values) else None


def _are_halves(values: Array) -> bool:
    """Check whether finite floats of 16 bits hold all values exactly; most values of 32 bits are found out by a few."""
    with np.errstate(over="ignore"):
        return all(
            bool(np.isfinite(half := part.astype(np.float16)).all()) and np.array_equal(half.astype(np.float32), part)
            for part in (values[:64], values)
        )


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
