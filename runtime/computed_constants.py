"""Constants that operators compute from initializers: transposed, reshaped, widened or dequantized weights.

The operators stay in the graph. They are dropped where nothing else reads what they compute.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]
Constant = Callable[[str], "Array | None"]
_WIDENED = {onnx.TensorProto.FLOAT: np.float32, onnx.TensorProto.FLOAT16: np.float16}
_QUANTIZED = (np.int8, np.uint8)


def is_computed(node: onnx.NodeProto) -> bool:
    """Check for an operator that can be computed here."""
    return node.op_type in _RULES and node.domain in ("", "ai.onnx") and len(node.output) == 1


def computed(node: onnx.NodeProto, constant: Constant) -> Array | None:
    """Return what a node computes from constants; None for other operators and inputs that are not constant."""
    arrays = [array for name in node.input if name and (array := constant(name)) is not None]
    if not is_computed(node) or not arrays or len(arrays) != sum(map(bool, node.input)):
        return None
    settings = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    try:
        return _RULES[node.op_type](arrays, settings)
    except (ValueError, IndexError, TypeError, OverflowError):  # ONNX Runtime reports what is wrong
        return None


def _identity(inputs: list[Array], _settings: Mapping[str, Any]) -> Array:
    return inputs[0]


def _transpose(inputs: list[Array], settings: Mapping[str, Any]) -> Array:
    return np.transpose(inputs[0], settings.get("perm"))


def _cast(inputs: list[Array], settings: Mapping[str, Any]) -> Array | None:
    kind = _WIDENED.get(settings["to"])
    return None if kind is None or inputs[0].dtype.kind != "f" else inputs[0].astype(kind)


def _reshape(inputs: list[Array], settings: Mapping[str, Any]) -> Array | None:
    if settings.get("allowzero", 0) or inputs[0].size == 0:
        return None
    lengths = [size if size else inputs[0].shape[axis] for axis, size in enumerate(map(int, inputs[1]))]
    return inputs[0].reshape(lengths)


def _squeeze(inputs: list[Array], settings: Mapping[str, Any]) -> Array:
    axes = settings.get("axes") or (inputs[1].tolist() if len(inputs) > 1 else None)
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _unsqueeze(inputs: list[Array], settings: Mapping[str, Any]) -> Array:
    axes = settings.get("axes") or inputs[1].tolist()
    return np.expand_dims(inputs[0], tuple(axes))


def _dequantize(inputs: list[Array], settings: Mapping[str, Any]) -> Array | None:
    """Compute as ONNX Runtime does: the difference in integers, the product in float32."""
    values, scale = inputs[:2]
    zero = inputs[2] if len(inputs) > 2 else np.zeros_like(scale, dtype=values.dtype)
    if values.dtype.type not in _QUANTIZED or scale.dtype != np.float32 or settings.get("block_size", 0):
        return None
    axis = settings.get("axis", 1)
    if scale.ndim == 1 and scale.size > 1:
        shape = [-1 if index == axis % values.ndim else 1 for index in range(values.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    return (values.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale


_RULES: Mapping[str, Callable[[list[Array], Mapping[str, Any]], Array | None]] = {
    **{"Identity": _identity, "Transpose": _transpose, "Cast": _cast, "Reshape": _reshape},
    **{"Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "DequantizeLinear": _dequantize},
}
