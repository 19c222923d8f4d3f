"""Value types of stored weights: float32, float16, or int8 with a scale for each channel.

The runtime converts them to float32 when it opens the file, with Cast and Mul, which it folds (DequantizeLinear it
does not). A narrower tensor is an ordinary tensor, so every encoding applies to it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.core.registry import Registry
from rigl_compress.exporters.encodings import Encoded, Parts

Array = NDArray[Any]
LARGEST_INT8 = 127


@dataclass(frozen=True)
class Narrow:
    """A tensor in fewer bits: `part` is its name below the tensor's, `around` the operators that rebuild the tensor."""

    part: str
    array: Array
    around: Encoded


@dataclass(frozen=True)
class Values:
    """A value type: `narrow(name, array)`, None if it cannot; `widen(array, parts)` as the runtime does.

    `parts` names what it stores besides the narrower array of type `kind`, and `around(name, parts)` returns the
    operators. `tolerance` is the largest difference of the outputs that an export may have, relative to the largest
    output.
    """

    name: str
    narrow: Callable[[str, Array], Narrow | None]
    widen: Callable[[Array, Parts], Array]
    around: Callable[[str, Parts], Encoded]
    tolerance: float
    about: str
    kind: type[np.generic] = np.float32
    parts: tuple[str, ...] = ()


def _no_narrower(name: str, array: Array) -> Narrow | None:
    del name, array
    return None


def _as_it_is(array: Array, parts: Parts) -> Array:
    del parts
    return array


def _nothing_around(name: str, parts: Parts) -> Encoded:
    del name, parts
    return Encoded()


def narrow_fp16(name: str, array: Array) -> Narrow | None:
    """Round to half precision; return None for a tensor with numbers beyond its range."""
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    if not np.array_equal(np.isfinite(half), np.isfinite(array)):
        return None
    return Narrow("fp16", half, around_fp16(name, {}))


def around_fp16(name: str, parts: Parts) -> Encoded:
    """Return the operator that converts half precision to float32."""
    del parts
    return Encoded(nodes=(helper.make_node("Cast", [f"{name}/fp16"], [name], to=TensorProto.FLOAT),))


def widen_fp16(array: Array, parts: Parts) -> Array:
    """Convert half precision to float32."""
    del parts
    return array.astype(np.float32)


def narrow_int8(name: str, array: Array) -> Narrow | None:
    """Round to −127 … 127 with a scale per channel (axis 0); return None without channels or for infinite numbers."""
    if array.ndim < 2 or not np.isfinite(array).all():
        return None
    largest = np.abs(array).max(axis=tuple(range(1, array.ndim)), keepdims=True)
    scale = np.where(largest > 0, largest / np.float32(LARGEST_INT8), 1).astype(np.float32)
    if not (scale > 0).all():  # a channel of subnormal numbers
        return None
    whole = np.rint(array / scale).astype(np.int8)
    return Narrow("int8", whole, around_int8(name, {"scale": scale}))


def around_int8(name: str, parts: Parts) -> Encoded:
    """Return the operators that multiply by the scales."""
    nodes = (
        helper.make_node("Cast", [f"{name}/int8"], [f"{name}/whole"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}/whole", f"{name}/scale"], [name]),
    )
    return Encoded(initializers=(numpy_helper.from_array(parts["scale"], f"{name}/scale"),), nodes=nodes)


def widen_int8(array: Array, parts: Parts) -> Array:
    """Multiply by the scales, one for each channel."""
    scale = parts["scale"]
    if scale.dtype != np.float32 or scale.shape != (len(array), *[1] * (array.ndim - 1)):
        raise ValueError(f"scales of shape {scale.shape} for {array.shape}")
    with np.errstate(all="ignore"):
        wide: Array = array.astype(np.float32) * scale
    return wide


VALUES: Registry[Values] = Registry("value type")
for _values in (
    Values("fp32", _no_narrower, _as_it_is, _nothing_around, 1e-4, "all 32 bits"),
    Values("fp16", narrow_fp16, widen_fp16, around_fp16, 1e-2, "half precision", np.float16),
    Values(
        *("int8", narrow_int8, widen_int8, around_int8, 1e-1, "eight bits and a scale per output channel"),
        kind=np.int8,
        parts=("scale",),
    ),
):
    VALUES.register(_values.name, _values)
