"""Loading of ONNX files, with checks and errors of one line."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters.bounded_tensors import check_model_sizes
from rigl_compress.exporters.external_data import Span, check_spans, contained, load_spans, spans_of
from rigl_compress.exporters.protobuf_walk import check_attributes, check_texts

LARGEST_FILE = 2**31 - 1  # of a protobuf message
OLDEST_OPSET = 11  # the first with CumSum and ScatterElements


def load_model(path: Path) -> onnx.ModelProto:
    """Load and check a model with its external data."""
    model = read_contained(path)
    with _about(path):
        load_spans(spans_of(model), path.parent)
    check_model(str(path), model)
    return model


def load_bytes(content: bytes) -> onnx.ModelProto:
    """Load a model from memory; external data raise, as there is no folder to find them in."""
    model = parsed("the model", content)
    check_model("the model", model)
    return model


def read_contained(path: Path) -> onnx.ModelProto:
    """Read a model without its external data, after checking that they are within its folder."""
    check_size(path)
    model = parsed(str(path), path.read_bytes())
    with _about(path):
        spans = spans_of(model)
    check_external(spans, path)
    return model


def files_of(path: Path) -> list[Path]:
    """Return the file of a model and those of its external data."""
    spans = spans_of(read_contained(path))
    return [path, *dict.fromkeys(contained(each.location, path.parent, each.tensor.name) for each in spans)]


def check_size(path: Path) -> None:
    """Raise `InputError` for a model that does not exist or is too large."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected an ONNX file: name a file in it, or export the run first")
    if not path.is_file():
        raise InputError(f"{path} does not exist: pass a run folder or an ONNX file")
    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"{path} is larger than 2 GiB, more than an ONNX file can hold: export a smaller model")


def check_external(spans: Sequence[Span], path: Path) -> None:
    """Raise `InputError` for external data outside of a model's folder, or too large together with the model."""
    with _about(path):
        check_spans(spans, path.parent)
    if path.stat().st_size + sum(span.size for span in spans) > LARGEST_FILE:
        raise InputError(f"{path} is larger than 2 GiB with its external data, more than one ONNX file can hold")


def check_contained(content: bytes, folder: Path) -> None:
    """Raise `InputError` for a model in memory whose external data are not within a folder."""
    check_spans(spans_of(parsed("the model", content)), folder)


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators."""
    return max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def delete(field: Any, unwanted: Callable[[Any], bool]) -> None:
    """Delete entries of a repeated field in place, without copying the others."""
    for index in reversed(range(len(field))):
        if unwanted(field[index]):
            del field[index]


def parsed(name: str, content: bytes) -> onnx.ModelProto:
    """Parse a model; raise `InputError` for bytes that are none."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError:
        raise InputError(f"{name} is not an ONNX file, or it is truncated: export it again") from None
    if not model.opset_import or not model.graph.output:
        raise InputError(f"{name} is not an ONNX model, it has no operator set or no output: export it again")
    with _about(name):
        check_texts(model)
        check_attributes(model.graph)
    return model


def check_model(name: str, model: onnx.ModelProto) -> None:
    """Raise `InputError` for tensors of wrong sizes, and for what the checker of ONNX rejects."""
    with _about(name):
        check_model_sizes(model)
    try:
        with any_shape(model.graph):
            onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise InputError(f"{name} is not a valid ONNX model ({one_line(error)}): export it again") from None


@contextmanager
def any_shape(graph: onnx.GraphProto) -> Iterator[None]:
    """Allow inputs and outputs without a shape, as ONNX Runtime does: the checker requires one."""
    values = [value.type.tensor_type for value in (*graph.input, *graph.output) if value.type.HasField("tensor_type")]
    shapeless = [value for value in values if not value.HasField("shape")]
    for value in shapeless:
        value.shape.SetInParent()
    try:
        yield
    finally:
        for value in shapeless:
            value.ClearField("shape")


@contextmanager
def _about(name: str | Path) -> Iterator[None]:
    """Put the name of the file before the message of an error."""
    try:
        yield
    except InputError as error:
        raise type(error)(f"{name}: {error}") from None
