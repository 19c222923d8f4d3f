"""Calibration samples: what a model is run on while it is pruned, and samples held out to check the result."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters.random_inputs import ModelInput, Shape, model_inputs
from rigl_compress.pipeline.bench.model_inputs import InputSpec, draw_inputs, recorded_shapes
from rigl_compress.pipeline.npz_inputs import read_array, read_inputs

Array = NDArray[Any]
Values = dict[str, Array]
Normalization = Literal["imagenet", "half", "none"]
BATCH = 8  # samples that run at once: more take more memory, and no less time
HELD_OUT = 0.2
RANDOM_BATCHES = 8


@dataclass(frozen=True)
class CalibrationConfig:
    """Where the samples are, how many are used, and how images are read."""

    path: Path | None = None
    samples: int = 256
    normalize: Normalization = "imagenet"
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    arrays: Mapping[str, Any] | None = None  # instead of a path

    @property
    def source(self) -> str:
        """What messages call it."""
        return "the calibration data" if self.path is None else str(self.path)


@dataclass(frozen=True)
class Calibration:
    """Batches by which layers are pruned, and others by which the result is checked."""

    batches: tuple[Values, ...]
    held_out: tuple[Values, ...]
    real: bool
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A hash of all samples."""
        found = hashlib.sha256()
        for batch in (*self.batches, *self.held_out):
            for name in sorted(batch):
                found.update(f"{name} {batch[name].dtype} {batch[name].shape}".encode())
                found.update(np.ascontiguousarray(batch[name]).data)
        return found.hexdigest()


def read_calibration(model: onnx.ModelProto, config: CalibrationConfig) -> Calibration:
    """Read samples for a model; without a path, draw random ones."""
    if config.samples < 2:
        raise InputError(f"{config.samples} samples, expected 2 or more: one is held out to check the result")
    if config.path is None and config.arrays is None:
        return _random(model, config.shapes)
    inputs = model_inputs(model)
    batches = list(_batches(model, inputs, config))
    for batch in batches:
        _check(batch, inputs, config.source)
    return _split(_some(batches, inputs, config.samples), inputs, config.source)


def _random(model: onnx.ModelProto, shapes: Mapping[str, Shape]) -> Calibration:
    found = [
        draw_inputs(model, None, InputSpec(shapes, option="--calibration"), seed) for seed in range(RANDOM_BATCHES)
    ]
    note = "no calibration data: weights are chosen by magnitude, and errors are those on random inputs"
    return Calibration(tuple(found[1:]), tuple(found[:1]), real=False, notes=(note,))


def _batches(model: onnx.ModelProto, inputs: Sequence[ModelInput], config: CalibrationConfig) -> Iterator[Values]:
    """Yield what there is, in batches that the model takes."""
    path = config.path
    if path is None or path.is_file():
        _check_shapes(config)
        given = {name: np.asarray(each) for name, each in (config.arrays or {}).items()}
        yield from _cut(given if path is None else _read_file(path, inputs), inputs)
        return
    if not path.is_dir():
        raise InputError(f"{path} does not exist: pass an .npz file, or a folder of images, .npy or .npz files")
    arrays = sorted(each for each in path.rglob("*") if each.suffix in (".npy", ".npz"))
    Random(0).shuffle(arrays)
    if arrays:
        _check_shapes(config)
        for each in arrays[: config.samples]:
            yield from _cut(_read_file(each, inputs), inputs)
        return
    from rigl_compress.onnx_pruning.calibration_images import image_batch

    recorded = {**recorded_shapes(model), **config.shapes}
    yield from _cut(image_batch(path, inputs, recorded, config), inputs)


def _check_shapes(config: CalibrationConfig) -> None:
    """Refuse shapes beside arrays, which have their own."""
    if config.shapes:
        names = ", ".join(config.shapes)
        raise InputError(
            f"{config.source} has arrays with shapes of their own, a shape of {names} is for images and random inputs: "
            "leave out --shape"
        )


def _read_file(path: Path, inputs: Sequence[ModelInput]) -> Values:
    if path.suffix == ".npz":
        return dict(read_inputs(path) or {})
    if path.suffix != ".npy":
        raise InputError(f"{path} is neither .npz nor .npy: write it with numpy.savez, by the names of the inputs")
    if len(inputs) != 1:
        names = ", ".join(each.name for each in inputs)
        raise InputError(f"{path} has one array, the model has inputs {names}: write .npz files with numpy.savez")
    array = read_array(path)
    return {inputs[0].name: array[None] if array.ndim == len(inputs[0].axes) - 1 else array}


def _cut(values: Values, inputs: Sequence[ModelInput]) -> Iterator[Values]:
    """Cut arrays along their first axis into batches: as long as the model says, or a few samples."""
    known = {each.name: each for each in inputs}
    for name in values:
        if name not in known:
            raise InputError(f"the model has no input {name!r}: {did_you_mean(str(name), known)}")
    lengths = {each.shape[0] for each in values.values() if each.ndim}
    if len(lengths) != 1 or set(values) != set(known):
        yield values
        return
    fixed = [each.axes[0] for each in inputs if each.axes and not each.batched]
    size, length = (int(fixed[0]) if fixed else BATCH), lengths.pop()
    last = length // size * size if fixed else length
    for start in range(0, last, size) if last else [0]:
        yield _part(values, slice(start, start + size))


def _part(values: Values, samples: slice) -> Values:
    """Return some samples; scalars are those of all."""
    return {name: each[samples] if each.ndim else each for name, each in values.items()}


def _divisible(batch: Values, inputs: Sequence[ModelInput]) -> bool:
    """Whether the model takes a part of a batch: all inputs have as many samples, along a free axis, or are scalars."""
    lengths = {len(each) for each in batch.values() if each.ndim}
    return len(lengths) == 1 and all(each.batched or not each.axes for each in inputs)


def _check(batch: Values, inputs: Sequence[ModelInput], path: str) -> None:
    for each in inputs:
        if each.name not in batch:
            raise InputError(f"{path} has no {each.name!r}: save all inputs of the model by name with numpy.savez")
        array = batch[each.name]
        if array.dtype != each.dtype:
            raise InputError(f"{path}: {each.name!r} is {array.dtype}, the model takes {each.dtype}: convert it")
        fits = len(array.shape) == len(each.axes) and all(
            isinstance(axis, str) or axis == length for axis, length in zip(each.axes, array.shape, strict=True)
        )
        if not fits or not array.size:
            wanted = ", ".join(map(str, each.axes))
            raise InputError(f"{path}: {each.name!r} has the shape {list(array.shape)}, the model takes [{wanted}]")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{path}: {each.name!r} has values that are not finite: remove those samples")


def samples_of(batch: Values) -> int:
    """Return how many samples a batch has."""
    return max((len(each) for each in batch.values() if each.ndim), default=1)


def _some(batches: Sequence[Values], inputs: Sequence[ModelInput], most: int) -> list[Values]:
    """Return batches of at most so many samples, of all parts of the data."""
    order = Random(0).sample(range(len(batches)), len(batches))
    kept: list[Values] = []
    for number in order:
        room = most - sum(map(samples_of, kept))
        if room < 1:
            break
        batch = batches[number]
        kept.append(_part(batch, slice(room)) if _divisible(batch, inputs) else batch)
    return kept


def _split(batches: Sequence[Values], inputs: Sequence[ModelInput], source: str) -> Calibration:
    """Hold out the last batches; of a single one, its last samples."""
    if not batches:
        raise InputError(f"{source} has no sample: add some")
    total, count = sum(map(samples_of, batches)), len(batches)
    if count == 1 and total > 1 and _divisible(batches[0], inputs):
        kept = min(total - 1, max(1, round(total * (1 - HELD_OUT))))
        parts = [_part(batches[0], each) for each in (slice(kept), slice(kept, None))]
        return Calibration((parts[0],), (parts[1],), real=True)
    if count == 1:
        found = "sample" if total == 1 else "batch"
        note = f"there is one {found}: the result is checked on the {found} by which it was pruned"
        return Calibration(tuple(batches), tuple(batches), real=True, notes=(note,))
    kept = min(count - 1, max(1, round(count * (1 - HELD_OUT))))
    return Calibration(tuple(batches[:kept]), tuple(batches[kept:]), real=True)
