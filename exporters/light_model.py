"""Light models: an ONNX model whose large weights stay in their files and are read one by one when they are needed.

Shape inference, the checker and ONNX Runtime's own check of a graph need the shapes of weights, not their values.
Models with encoded weights are small in their files, and are loaded whole.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import TensorProto, helper

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.bounded_tensors import all_tensors
from rigl_compress.exporters.external_data import Span, load_spans, opened, span_of
from rigl_compress.exporters.onnx_file import check_external, check_model, check_size, load_bytes, load_model, parsed
from rigl_compress.exporters.protobuf_scan import LARGE, NUMBERS, Place, ScanError, hollow, is_hollow, scan_model
from rigl_compress.exporters.sparsify import metadata_of

Array = NDArray[Any]


class Weights(Mapping[str, Array]):
    """Arrays by name, each read anew when it is asked for."""

    def __init__(self, readers: Mapping[str, Callable[[], Array]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> Array:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


@dataclass(frozen=True)
class LightModel:
    """A model with initializers without values (`is_hollow`), and the arrays of these."""

    model: onnx.ModelProto
    weights: Mapping[str, Array] = field(default_factory=dict)
    single: bool = False  # known to be in one file


@contextmanager
def light_model(source: str | bytes) -> Iterator[LightModel]:
    """Load and check a model; large weights are read while the context is open."""
    with _opened(source) as file:
        try:
            found = None if file is None else _light(source, file)
        except (ScanError, InputError):  # loading the whole model finds what is wrong
            found = None
        yield LightModel(_whole(source)) if found is None else found


def outline(source: str | bytes) -> onnx.ModelProto | None:
    """Return a model without the values of its large weights, unchecked; None if it cannot be read."""
    with _opened(source) as file:
        try:
            return None if file is None else onnx.ModelProto.FromString(scan_model(file)[0])
        except (ScanError, DecodeError, OSError):
            return None


def _whole(source: str | bytes) -> onnx.ModelProto:
    return load_bytes(source) if isinstance(source, bytes) else load_model(Path(source))


@contextmanager
def _opened(source: str | bytes) -> Iterator[BinaryIO | None]:
    """Open a model for reading; yield nothing if that is impossible."""
    if isinstance(source, bytes):
        yield BytesIO(source)
        return
    if not Path(source).is_file():
        yield None
        return
    with Path(source).open("rb") as file:
        yield file


def _light(source: str | bytes, file: BinaryIO) -> LightModel:
    """Return a model without large weights; one with sparse or encoded weights whole."""
    if not isinstance(source, bytes):
        check_size(Path(source))
    content, places = scan_model(file)
    name = "the model" if isinstance(source, bytes) else source
    model = parsed(name, content)
    if sum(map(is_hollow, all_tensors(model))) != len(places):
        raise ScanError("external data without a location")
    single = not any(map(_is_external, all_tensors(model)))
    if model.graph.sparse_initializer or metadata_of(model).get("tensors"):
        return LightModel(_whole(source), single=single)
    readers = {place.tensor.name: _reader(file, place) for place in places}
    if not isinstance(source, bytes):
        readers |= _external(model, Path(source))
    check_model(name, as_inputs(model))
    return LightModel(model, Weights(readers), single)


def _reader(file: BinaryIO, place: Place) -> Callable[[], Array]:
    def read() -> Array:
        return _array(file.fileno() if not isinstance(file, BytesIO) else file, place.tensor, place.offset)

    return read


def _array(file: int | BytesIO, tensor: TensorProto, offset: int) -> Array:
    """Read an array from a position of a file, by its descriptor or in memory."""
    array = np.empty(tuple(tensor.dims), np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).newbyteorder("<"))
    target = array.reshape(-1).view(np.uint8).data
    if isinstance(file, int):
        while target and (count := os.preadv(file, [target], offset)):
            target, offset = target[count:], offset + count
    else:
        target[:] = file.getbuffer()[offset : offset + len(target)]
        target = target[:0]
    if target:
        raise InputError(f"the file ends before the values of {tensor.name!r}: it was changed while it was read")
    return array


def _external(model: onnx.ModelProto, path: Path) -> dict[str, Callable[[], Array]]:
    """Check external data and load those of small tensors; return readers of large initializers, made hollow."""
    spans = [span_of(tensor) for tensor in all_tensors(model) if _is_external(tensor)]
    check_external(spans, path)
    readers: dict[str, Callable[[], Array]] = {}
    for tensor in model.graph.initializer:
        if _is_external(tensor) and _is_large(span := span_of(tensor)):
            if tensor.name in readers:
                raise ScanError("two initializers of one name")
            readers[tensor.name] = _external_reader(span, path.parent)
            tensor.CopyFrom(hollow(tensor))
    load_spans([span_of(tensor) for tensor in all_tensors(model) if _is_external(tensor)], path.parent)
    return readers


def _is_external(tensor: TensorProto) -> bool:
    return tensor.data_location == TensorProto.EXTERNAL and not is_hollow(tensor)


def _is_large(span: Span) -> bool:
    return span.tensor.data_type in NUMBERS and span.size >= LARGE


def _external_reader(span: Span, folder: Path) -> Callable[[], Array]:
    kept = Span(hollow(span.tensor), span.location, span.offset, span.length)

    def read() -> Array:
        with opened(kept, folder) as descriptor:
            return _array(descriptor, kept.tensor, kept.offset)

    return read


def as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which initializers without values are inputs: every check of the graph accepts it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    empty = [tensor for tensor in model.graph.initializer if is_hollow(tensor)]
    kept = [tensor for tensor in model.graph.initializer if not is_hollow(tensor)]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(kept)
    known = {value.name for value in model.graph.input}
    copy.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in empty if each.name not in known
    )
    return copy


def fill(model: onnx.ModelProto, weights: Mapping[str, Array]) -> None:
    """Put the values of weights back into a model."""
    for tensor in model.graph.initializer:
        if is_hollow(tensor):
            tensor.raw_data = weights[tensor.name].tobytes()
            tensor.ClearField("data_location")
