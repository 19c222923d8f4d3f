"""The reader of packed weights is given anything: it refuses or reads just as a few lines of Python do."""

import struct
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import numpy_helper
from sparse_nets import onnx_layer, sparse_weight

from rigl_compress.runtime import kernels
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import check_packed
from rigl_compress.runtime.packed_weights import pack_matrix, size_of
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import register

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
Array = NDArray[Any]
HEADER = 32
KINDS = {1: ("<f2", 0), 2: ("<i1", 4)}  # of values: their type, and the bytes of the scale of a row
FIELDS = [(0, 4), (4, 4), (8, 4), (12, 4), (16, 8), (24, 4), (28, 4)]
ODD_NUMBERS = [0, 1, 2, 3, 4, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x10001, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1]


def understood(packed: bytes) -> tuple[Array, Array, Array, tuple[int, int]] | None:
    """Read packed weights by the description in `native/packed.h`: rows, columns and values of the non-zeros."""
    if len(packed) < HEADER:
        return None
    magic, version, rows, columns, count, width, kind = struct.unpack("<4sIIIQII", packed[:HEADER])
    known = (magic, width) == (b"RGLS", 2 if columns <= 65536 else 4) and rows > 0 and columns > 0
    if not known or version not in (1, 2) or (version == 2 and kind not in KINDS):
        return None
    form, extra = KINDS[kind] if version == 2 else ("<f4", 0)
    start, size = HEADER + (4 + extra) * rows, np.dtype(form).itemsize
    if len(packed) != start + count * (size + width):
        return None
    lengths = np.frombuffer(packed, "<u4", rows, HEADER)
    if int(lengths.sum(dtype=np.uint64)) != count:
        return None
    row = np.repeat(np.arange(rows), lengths)
    values = np.frombuffer(packed, form, count, start).astype(np.float32)
    if version == 2 and not np.isfinite(values).all():
        return None
    if extra:
        scales = np.frombuffer(packed, "<f4", rows, HEADER + 4 * rows)
        if not ((scales >= np.float32(1e-30)) & (scales <= np.float32(1e30))).all():
            return None
        values = values * scales[row]
    places = np.frombuffer(packed, f"<u{width}", count, start + size * count).astype(np.int64)
    rising = (np.diff(places) > 0) | (np.diff(row) > 0)
    return (row, places, values, (rows, columns)) if (places < columns).all() and rising.all() else None


@st.composite
def matrices(draw: st.DrawFn) -> bytes:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.integers(1, 12)), draw(st.sampled_from([1, 2, 5, 9, 36, 65536, 65537]))
    matrix = np.zeros(shape, np.float32)
    count = draw(st.integers(0, 30))
    kind = draw(st.sampled_from(["float32", "float16", "int8"]))
    values = {
        "float32": 1 + rng.random(count),
        "float16": rng.integers(1, 99, count) / 64,
        "int8": rng.integers(1, 99, count) / 3,
    }
    matrix[rng.integers(0, shape[0], count), rng.integers(0, shape[1], count)] = values[kind]
    return pack_matrix(matrix, (np.full(1, 1 / 3, np.float32),) if kind == "int8" else ()).tobytes()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Packed weights with a few changes: of bytes, of numbers at their begin, of the length, of the order."""
    packed = bytearray(draw(matrices()))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, max(len(packed) - 1, 0)))
        kind = draw(st.sampled_from(["byte", "field", "cut", "insert", "repeat", "count"]))
        if kind == "byte" and packed:
            packed[place] = draw(st.integers(0, 255))
        elif kind == "field":
            start, size = draw(st.sampled_from(FIELDS))
            packed[start : start + size] = draw(st.sampled_from(ODD_NUMBERS)).to_bytes(8, "little")[:size]
        elif kind == "count":
            packed[HEADER : HEADER + 4] = draw(st.sampled_from(ODD_NUMBERS)).to_bytes(8, "little")[:4]
        elif kind == "cut":
            del packed[place:]
        elif kind == "insert":
            packed[place:place] = draw(st.binary(max_size=12))
        else:
            packed[place:place] = packed[place : place + draw(st.integers(1, 40))]
    return bytes(packed)


@settings(deadline=None, max_examples=500)
@given(packed=st.one_of(damaged(), st.binary(max_size=300)))
@example(packed=b"")
@example(packed=b"RGLS")
def test_read_or_refused_as_described(packed: bytes) -> None:
    told, found = check_packed(packed), understood(packed)
    assert (told == "") == (found is not None), told
    assert told == "" or told.startswith(("packed weights", "not packed weights"))
    assert found is None or size_of(packed) == (*found[3], len(found[2]))


@settings(deadline=None, max_examples=300)
@given(packed=damaged(), batch=st.sampled_from([1, 3]))
def test_what_is_read_is_multiplied(packed: bytes, batch: int) -> None:
    found = understood(packed)
    library = kernels._library()
    handle = library.rigl_matmul_create(packed, len(packed), b"", None, 0)
    assert bool(handle) == (found is not None)
    if found is None:
        return
    row, places, values, (rows, columns) = found
    if columns > 2**20:  # inputs of so many features are not made
        library.rigl_matmul_destroy(handle)
        return
    features = (1 + np.arange(columns) % 7).astype(np.float32)
    x, y = np.tile(features, (batch, 1)), np.empty((batch, rows), np.float32)
    call = kernels._MatMulCall(x.ctypes.data, batch, None, y.ctypes.data, False, False, -np.inf, np.inf)
    library.rigl_matmul_run(handle, call, 1, None, 0)
    library.rigl_matmul_destroy(handle)
    expected = np.zeros(rows)
    with np.errstate(invalid="ignore", over="ignore"):
        np.add.at(expected, row, values.astype(np.float64) * features[places])
        wanted = expected.astype(np.float32)
        # A sum beyond the largest number may be reached on the way, in another order of adding.
        sane = np.abs(np.nan_to_num(expected, nan=np.inf)) < 1e30
        np.testing.assert_allclose(y[:, sane], np.tile(wanted[sane], (batch, 1)), rtol=1e-3, atol=1e-3)


@settings(deadline=None, max_examples=200)
@given(packed=damaged(), axes=st.lists(st.sampled_from([-1, 0, 1, 2, 3, 2**40]), min_size=10, max_size=10))
def test_other_operators_are_made_or_refused(packed: bytes, axes: list[int]) -> None:
    library, found = kernels._library(), understood(packed)
    conv = library.rigl_conv_create(
        packed, len(packed), kernels._ConvShape((kernels.c_int64 * 10)(*axes)), b"", None, 0
    )
    gru = library.rigl_gru_create(
        packed, len(packed), kernels._GruShape(axes[0] % 4, (0, 1), axes[1] % 2), b"", None, 0
    )
    assert found is not None or not (conv or gru)
    assert not gru or (found is not None and found[3][0] in (3 * found[3][1], 6 * found[3][1]))
    library.rigl_conv_destroy(conv)
    library.rigl_gru_destroy(gru)


@settings(deadline=None, max_examples=30)
@given(packed=damaged())
def test_sessions_refuse_it_in_a_sentence(packed: bytes) -> None:
    model = rewrite(onnx_layer(sparse_weight()), lambda *_: True).model
    tensor = next(each for each in model.graph.initializer if each.name.endswith("/packed"))
    tensor.CopyFrom(numpy_helper.from_array(np.frombuffer(packed, np.uint8), tensor.name))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    register(options)
    if understood(packed) is None:
        with pytest.raises(Exception, match=r"SparseMatMul: (not )?packed weights"):
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    else:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
