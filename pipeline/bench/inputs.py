"""Inputs to run a model with: shapes from the model, from its metadata or from the user, numbers at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.exporters.verify import random_array
from rigl_compress.models.errors import InputError, did_you_mean

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class InputAxes:
    """An input of a model: its type, and its axes, each a length or the name of a free one."""

    name: str
    dtype: np.dtype[Any]
    axes: tuple[int | str, ...]

    @property
    def batched(self) -> bool:
        """Whether the first axis is free, which by custom is the batch."""
        return bool(self.axes) and isinstance(self.axes[0], str)


@dataclass(frozen=True)
class Wishes:
    """What the user says about inputs: arrays, or shapes by name; shapes are of one batch."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    arrays: Mapping[str, Array] | None = None


def parse_shape(text: str) -> tuple[str, Shape]:
    """Read what people write for a shape.

    >>> parse_shape("image=1,3,224,224")
    ('image', (1, 3, 224, 224))
    """
    name, equals, axes = text.rpartition("=")
    try:
        shape = tuple(int(axis) for axis in axes.replace("x", ",").split(",")) if axes else ()
    except ValueError:
        shape = (0,)
    if not equals or not name or any(axis < 1 for axis in shape):
        raise InputError(f"shape {text!r} is not of the form name=1,3,224,224")
    return name, shape


def model_inputs(model: onnx.ModelProto) -> list[InputAxes]:
    """Give the inputs that a caller must provide."""
    given = {tensor.name for tensor in model.graph.initializer}
    given |= {sparse.values.name for sparse in model.graph.sparse_initializer}
    return [_axes(value) for value in model.graph.input if value.name not in given]


def _axes(value: onnx.ValueInfoProto) -> InputAxes:
    kind, tensor = value.type.tensor_type, value.type.HasField("tensor_type")
    drawn = set(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING}
    if not tensor or kind.elem_type not in drawn:
        text = kind.elem_type == onnx.TensorProto.STRING
        found = ("text" if text else kind.elem_type) if tensor else value.type.WhichOneof("value")
        raise InputError(
            f"input {value.name!r} is of type {found}, which cannot be drawn: give the model a tensor of numbers"
        )
    axes = tuple(
        axis.dim_value if axis.HasField("dim_value") and axis.dim_value > 0 else _name(axis.dim_param, value, place)
        for place, axis in enumerate(kind.shape.dim)
    )
    return InputAxes(value.name, np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)), axes)


def _name(given: str, value: onnx.ValueInfoProto, place: int) -> str:
    """Name a free axis; one without a name of its own is like no other."""
    return given if given.isidentifier() or "." in given else f"{value.name} {place}"


def draw_inputs(model: onnx.ModelProto, batch: int | None, wishes: Wishes, seed: int = 0) -> dict[str, Array]:
    """Give inputs for a model: the user's, or random ones of the user's, the recorded or the model's own shapes.

    Without a batch the first axis is as long as the user or the model says, or else 1.
    """
    inputs = model_inputs(model)
    _check_names(inputs, [*wishes.shapes, *(wishes.arrays or {})])
    if wishes.arrays is not None:
        return {each.name: _given(each, wishes.arrays, batch) for each in inputs}
    lengths = _lengths(inputs, batch, wishes.shapes, recorded_shapes(model))
    rng = np.random.default_rng(seed)
    return {each.name: random_array(each.dtype, _shape(each, lengths, batch), rng) for each in inputs}


def recorded_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Give the shapes that an export wrote down, as far as they make sense: a file can come from anywhere."""
    found = metadata_of(model).get("inputs")
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: tuple(shape) for name, shape in pairs if _is_shape(shape)}


def _is_shape(found: Any) -> bool:
    return isinstance(found, list) and all(type(axis) is int and axis > 0 for axis in found)


def _lengths(
    inputs: Sequence[InputAxes], batch: int | None, wished: Mapping[str, Shape], recorded: Mapping[str, Shape]
) -> dict[str, int]:
    """Give the lengths of free axes by name, which several inputs can share: the user's word counts before a record."""
    found: dict[str, int] = {}
    for each in inputs:
        shape = wished.get(each.name)
        if shape is not None:
            _check_shape(each, shape)
        found = {**_free(each, shape or ()), **found}
    first = {str(each.axes[0]) for each in inputs if each.batched}
    found |= {axis: batch if batch is not None else found.get(axis, 1) for axis in first}
    for each in inputs:
        shape = recorded.get(each.name, ())
        found = {**(_free(each, shape) if _fits(each, shape) else {}), **found}
    return found


def _free(each: InputAxes, shape: Shape) -> dict[str, int]:
    pairs = zip(each.axes, shape, strict=True) if shape else ()
    return {axis: length for axis, length in pairs if isinstance(axis, str)}


def one_sample(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Cut inputs down to a batch of one, along every axis that has the name of the batch."""
    found = dict(inputs)
    axes = model_inputs(model)
    first = {each.axes[0] for each in axes if each.batched}
    for each in axes:
        for place in [place for place, axis in enumerate(each.axes) if axis in first]:
            found[each.name] = np.ascontiguousarray(found[each.name].take([0], axis=place))
    return found


def _check_names(inputs: Sequence[InputAxes], names: Sequence[str]) -> None:
    known = [each.name for each in inputs]
    for name in names:
        if name not in known:
            raise InputError(f"the model has no input {name!r}: {did_you_mean(name, known)}")


def _given(each: InputAxes, arrays: Mapping[str, Array], batch: int | None) -> Array:
    if each.name not in arrays:
        raise InputError(f"the file of inputs has no {each.name!r}: save all inputs of the model with numpy.savez")
    array = arrays[each.name]
    if array.dtype != each.dtype:
        raise InputError(f"input {each.name!r} is {array.dtype} in the file, the model takes {each.dtype}: convert it")
    if each.batched and batch not in (None, array.shape[0]):
        raise InputError(f"input {each.name!r} has a batch of {array.shape[0]} in the file: leave out --batch")
    _check_shape(each, array.shape)
    return np.ascontiguousarray(array)


def _shape(each: InputAxes, lengths: Mapping[str, int], batch: int | None) -> Shape:
    unknown = [axis for axis in each.axes if isinstance(axis, str) and axis not in lengths]
    if unknown:
        example = [str(axis) if isinstance(axis, int) else str(lengths.get(axis, "N")) for axis in each.axes]
        raise InputError(
            f"input {each.name!r} has axes of any length, {_text(each.axes)}: say how long with "
            f"--shape {each.name}={','.join(example)}, or give --input FILE.npz"
        )
    shape = tuple(axis if isinstance(axis, int) else lengths[axis] for axis in each.axes)
    if batch not in (None, 1) and not each.batched and shape and batch not in shape:
        raise InputError(f"input {each.name!r} is always {_text(each.axes)}: a batch of {batch} does not fit it")
    return shape


def _fits(each: InputAxes, shape: Shape) -> bool:
    if len(shape) != len(each.axes):
        return False
    return all(isinstance(axis, str) or axis == length for axis, length in zip(each.axes, shape, strict=True))


def _check_shape(each: InputAxes, shape: Shape) -> None:
    if not _fits(each, shape):
        raise InputError(f"input {each.name!r} is {_text(each.axes)} in the model, and {_text(shape)} does not fit")


def _text(axes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, axes))}]"
