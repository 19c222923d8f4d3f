"""The encoding of ascending indices, such as those of selected inputs: differences of one or two bytes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.encodings import SHARED, Encoded, Parts

Array = NDArray[Any]
NAME = "steps"


def encode_indices(name: str, array: Array) -> Encoded | None:
    """Encode ascending int64 indices as their differences; return None for anything else.

    >>> encoded = encode_indices("index", np.array([3, 4, 700]))
    >>> [numpy_helper.to_array(tensor).tolist() for tensor in encoded.initializers]
    [[3, 1, 696], 0]
    """
    if array.dtype != np.int64 or array.ndim != 1 or not array.size:
        return None
    steps = np.diff(array, prepend=0)
    if steps.min() < 0 or steps.max() > np.iinfo(np.uint16).max:
        return None
    narrow = steps.astype(np.min_scalar_type(int(steps.max())))
    return Encoded(
        initializers=(
            numpy_helper.from_array(narrow, f"{name}/steps"),
            helper.make_tensor(f"{SHARED}axis", TensorProto.INT32, [], [0]),
        ),
        nodes=(
            helper.make_node("Cast", [f"{name}/steps"], [f"{name}/wide"], to=TensorProto.INT64),
            helper.make_node("CumSum", [f"{name}/wide", f"{SHARED}axis"], [name]),
        ),
    )


def decode_indices(parts: Parts) -> Array:
    """Return the cumulative sums of the differences."""
    return np.cumsum(parts["steps"].astype(np.int64))
