"""Signs of zeros: masked negative weights are -0.0, which a lossless encoding has to keep.

A bit-mask marks the elements that are -0.0, so that the encodings can treat them as zeros.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.encodings import (
    SHARED,
    Encoded,
    Parts,
    bit_planes,
    joined,
    numbers,
    packed_bits,
    unpacked,
)
from rigl_compress.exporters.value_precision import Narrow

Array = NDArray[Any]
NAME = "signed"


def negative_zeros(array: Array) -> NDArray[np.bool_]:
    """Mark every -0.0.

    >>> negative_zeros(np.array([0.0, -0.0, -1.0])).tolist()
    [False, True, False]
    """
    if array.dtype.kind != "f":
        return np.zeros(array.shape, dtype=np.bool_)
    found: NDArray[np.bool_] = (array == 0) & np.signbit(array)
    return found


def without_signs(name: str, array: Array) -> Narrow | None:
    """Return a tensor with 0.0 for -0.0, and the operators that restore it: a product with 1 and -1.

    None if there is no -0.0, or if a product would change other bits, those of NaN; half precision is not multiplied by
    all runtimes. (ONNX Runtime's Where gives 0.0 for -0.0.)
    """
    negative = negative_zeros(array)
    if not negative.any() or array.dtype != np.float32 or np.isnan(array).any():
        return None
    begin, end, factors = f"{SHARED}begin", f"{SHARED}size/{array.size}", f"{SHARED}factors"
    around = Encoded(
        initializers=(
            numpy_helper.from_array(packed_bits(negative), f"{name}/negative"),
            numpy_helper.from_array(np.array([1, -1], dtype=np.float32), factors),
            *(numbers(begin, [0]), numbers(end, [array.size]), numbers(f"{name}/dims", array.shape)),
        ),
        nodes=(
            helper.make_node("Slice", [f"{name}/places", begin, end], [f"{name}/all"]),
            helper.make_node("Cast", [f"{name}/all"], [f"{name}/which"], to=TensorProto.INT32),
            helper.make_node("Gather", [factors, f"{name}/which"], [f"{name}/signs"]),
            helper.make_node("Reshape", [f"{name}/signs", f"{name}/dims"], [f"{name}/factors"]),
            helper.make_node("Mul", [f"{name}/{NAME}", f"{name}/factors"], [name]),
        ),
    )
    cleared = np.where(negative, np.float32(0), array)
    return Narrow(NAME, cleared, joined(bit_planes(f"{name}/negative", f"{name}/places"), around))


def with_signs(array: Array, parts: Parts) -> Array:
    """Return the array with its -0.0 restored."""
    negative = unpacked(parts["negative"], array.size).reshape(array.shape)
    return np.where(negative, array.dtype.type(-0.0), array)
