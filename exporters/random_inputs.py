"""Random inputs for a model: the inputs that it declares, the sizes of their axes, and numbers to fill them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper

from rigl_compress.core.errors import InputError

Array = NDArray[Any]
Shape = tuple[int, ...]
LARGEST_INPUT = 2**27  # elements: 1 GiB while they are drawn
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
DTYPES = {  # numpy's names by those of ONNX Runtime
    **{"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(bool)": "bool"},
    **{f"tensor({name})": name for name in _INTEGERS},
}


@dataclass(frozen=True)
class ModelInput:
    """An input of a model: its type, and its axes, each a length or the name of a dynamic one."""

    name: str
    dtype: np.dtype[Any]
    axes: tuple[int | str, ...]

    @property
    def batched(self) -> bool:
        """Whether the first axis is dynamic, which by convention is the batch."""
        return bool(self.axes) and isinstance(self.axes[0], str)


def session_inputs(session: ort.InferenceSession) -> list[ModelInput]:
    """Return the inputs of a session; raise `InputError` for one that is not a tensor of numbers."""
    return [_session_input(each) for each in session.get_inputs()]


def _session_input(each: Any) -> ModelInput:
    if each.type not in DTYPES:
        raise InputError(
            f"no random numbers for input {each.name!r} of type {each.type}, expected a tensor of numbers: "
            "pass inputs of your own"
        )
    axes = tuple(_session_axis(axis, f"{each.name} {index}") for index, axis in enumerate(each.shape))
    return ModelInput(each.name, np.dtype(DTYPES[each.type]), axes)


def _session_axis(axis: Any, unnamed: str) -> int | str:
    if isinstance(axis, int) and axis > 0:
        return axis
    return axis if isinstance(axis, str) else unnamed


def model_inputs(model: onnx.ModelProto) -> list[ModelInput]:
    """Return the inputs of a model that have no initializer; raise `InputError` for one that is not numbers."""
    given = {tensor.name for tensor in model.graph.initializer}
    given |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    return [_model_input(value) for value in model.graph.input if value.name not in given]


def _model_input(value: onnx.ValueInfoProto) -> ModelInput:
    kind, tensor = value.type.tensor_type, value.type.HasField("tensor_type")
    numbers = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING}
    if not tensor or kind.elem_type not in numbers:
        text = kind.elem_type == TensorProto.STRING
        found = ("text" if text else kind.elem_type) if tensor else value.type.WhichOneof("value")
        raise InputError(f"input {value.name!r} is of type {found}, expected a tensor of numbers: change the model")
    axes = tuple(_model_axis(axis, f"{value.name} {index}") for index, axis in enumerate(kind.shape.dim))
    return ModelInput(value.name, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), axes)


def _model_axis(axis: onnx.TensorShapeProto.Dimension, unnamed: str) -> int | str:
    """Return the length of an axis, or its name; one without a proper name is like no other."""
    if axis.HasField("dim_value") and axis.dim_value > 0:
        return axis.dim_value
    return axis.dim_param if axis.dim_param.isidentifier() or "." in axis.dim_param else unnamed


def sized(inputs: Sequence[ModelInput], batch: int, length: int | None = None) -> dict[str, Shape]:
    """Return shapes by name in which dynamic axes have the size `batch`.

    With `length`, it is the size of dynamic axes that come first in no input: those of images and sequences.

    >>> sound = ModelInput("sound", np.dtype("float32"), ("batch", 1, "time"))
    >>> sized([sound], batch=2), sized([sound], batch=2, length=640)
    ({'sound': (2, 1, 2)}, {'sound': (2, 1, 640)})
    """
    first = {each.axes[0] for each in inputs if each.batched}

    def size(axis: int | str) -> int:
        if isinstance(axis, int):
            return axis
        return batch if length is None or axis in first else length

    return {each.name: tuple(map(size, each.axes)) for each in inputs}


def random_inputs(
    session: ort.InferenceSession, batch: int = 2, seed: int = 0, length: int | None = None
) -> dict[str, Array]:
    """Return random inputs for a session, with dynamic axes as in `sized`."""
    inputs = session_inputs(session)
    return random_arrays(inputs, sized(inputs, batch, length), seed)


def random_arrays(inputs: Sequence[ModelInput], shapes: Mapping[str, Shape], seed: int = 0) -> dict[str, Array]:
    """Return random arrays by name, in the order of the inputs."""
    rng = np.random.default_rng(seed)
    return {each.name: random_array(each.dtype, shapes[each.name], rng) for each in inputs}


def random_array(dtype: np.dtype[Any], shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Return random numbers between 0 and 1; integers are 0 or 1, which are valid indices of most tables.

    >>> random_array(np.dtype("int64"), [2, 3], np.random.default_rng(0)).max() < 2
    np.True_
    """
    if prod(shape) > LARGEST_INPUT:
        raise InputError(
            f"an input of shape {list(shape)} is too large for random numbers, expected at most {LARGEST_INPUT} "
            "elements: pass inputs of your own"
        )
    drawn = rng.random(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return np.asarray(drawn).astype(dtype)
