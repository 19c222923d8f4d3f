"""Inputs of a model: shapes from the model, from its metadata or from the user, with random values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters.random_inputs import ModelInput, Shape, model_inputs, random_arrays
from rigl_compress.exporters.sparsify import metadata_of

Array = NDArray[Any]


@dataclass(frozen=True)
class InputSpec:
    """What the user says about inputs: arrays, or shapes by name; shapes are of one batch. `option` takes arrays."""

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    arrays: Mapping[str, Array] | None = None
    option: str = "--inputs"


def parse_shape(text: str) -> tuple[str, Shape]:
    """Parse a shape from the command line.

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


def draw_inputs(model: onnx.ModelProto, batch: int | None, input_spec: InputSpec, seed: int = 0) -> dict[str, Array]:
    """Return inputs for a model: the user's, or random ones of the user's, the recorded or the model's own shapes.

    Without a batch the first axis is as long as given by the user or the model, or else 1.
    """
    inputs = model_inputs(model)
    _check_names(inputs, [*input_spec.shapes, *(input_spec.arrays or {})])
    if input_spec.arrays is not None:
        return {each.name: _given(each, input_spec.arrays, batch) for each in inputs}
    lengths = _lengths(inputs, batch, input_spec.shapes, recorded_shapes(model))
    return random_arrays(inputs, {each.name: _shape(each, lengths, batch, input_spec.option) for each in inputs}, seed)


def recorded_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """Return the shapes in the metadata, as far as they are valid: the file may be untrusted."""
    found = metadata_of(model).get("inputs")
    pairs = found.items() if isinstance(found, dict) else ()
    return {name: tuple(shape) for name, shape in pairs if _is_shape(shape)}


def _is_shape(found: Any) -> bool:
    return isinstance(found, list) and all(type(axis) is int and axis > 0 for axis in found)


def _lengths(
    inputs: Sequence[ModelInput], batch: int | None, wished: Mapping[str, Shape], recorded: Mapping[str, Shape]
) -> dict[str, int]:
    """Return the lengths of free axes by name, which inputs can share: the user's shapes override the metadata."""
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


def _free(each: ModelInput, shape: Shape) -> dict[str, int]:
    pairs = zip(each.axes, shape, strict=True) if shape else ()
    return {axis: length for axis, length in pairs if isinstance(axis, str)}


def one_sample(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return inputs cut to a batch of one, along every axis that has the name of the batch."""
    found = dict(inputs)
    axes = model_inputs(model)
    first = {each.axes[0] for each in axes if each.batched}
    for each in axes:
        for place in [place for place, axis in enumerate(each.axes) if axis in first]:
            found[each.name] = np.ascontiguousarray(found[each.name].take([0], axis=place))
    return found


def _check_names(inputs: Sequence[ModelInput], names: Sequence[str]) -> None:
    known = [each.name for each in inputs]
    for name in names:
        if name not in known:
            raise InputError(f"the model has no input {name!r}: {did_you_mean(name, known)}")


def _given(each: ModelInput, arrays: Mapping[str, Array], batch: int | None) -> Array:
    if each.name not in arrays:
        raise InputError(f"the file of inputs has no {each.name!r}: save all inputs of the model with numpy.savez")
    array = arrays[each.name]
    if array.dtype != each.dtype:
        raise InputError(f"input {each.name!r} is {array.dtype} in the file, the model takes {each.dtype}: convert it")
    if each.batched and batch not in (None, array.shape[0]):
        raise InputError(f"input {each.name!r} has a batch of {array.shape[0]} in the file: leave out --batch")
    _check_shape(each, array.shape)
    return np.ascontiguousarray(array)


def _shape(each: ModelInput, lengths: Mapping[str, int], batch: int | None, option: str) -> Shape:
    unknown = [axis for axis in each.axes if isinstance(axis, str) and axis not in lengths]
    if unknown:
        example = [str(axis) if isinstance(axis, int) else str(lengths.get(axis, "N")) for axis in each.axes]
        raise InputError(
            f"input {each.name!r} has free axes, {_text(each.axes)}: set their lengths with "
            f"--shape {each.name}={','.join(example)}, or pass {option} FILE.npz"
        )
    shape = tuple(axis if isinstance(axis, int) else lengths[axis] for axis in each.axes)
    if batch not in (None, 1) and not each.batched and shape and batch not in shape:
        raise InputError(f"input {each.name!r} has the fixed shape {_text(each.axes)}: a batch of {batch} does not fit")
    return shape


def _fits(each: ModelInput, shape: Shape) -> bool:
    if len(shape) != len(each.axes):
        return False
    return all(isinstance(axis, str) or axis == length for axis, length in zip(each.axes, shape, strict=True))


def _check_shape(each: ModelInput, shape: Shape) -> None:
    if not _fits(each, shape):
        raise InputError(f"input {each.name!r} is {_text(each.axes)} in the model, and {_text(shape)} does not fit")


def _text(axes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, axes))}]"
