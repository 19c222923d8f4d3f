"""ONNX files in and out: whole models in one piece, and an error of one sentence for all that is not one."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, external_data_helper

from rigl_compress.models.errors import InputError

LARGEST_FILE = 2**31 - 1  # of a protobuf message
OLDEST_OPSET = 11  # CumSum and ScatterElements begin there


def load_model(path: Path) -> onnx.ModelProto:
    """Load a model with its external data, checked to be one that can be worked on."""
    model = _parsed(path)
    _check_external(path, model)
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise InputError(
            f"the external data of {path} cannot be read ({_line(error)}): put it beside the file"
        ) from None
    _check_model(path, model)
    return model


def opset_of(model: onnx.ModelProto) -> int:
    """Give the version of the standard operators."""
    return max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)


def sha256_of(path: Path) -> str:
    """Give the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def delete(field: Any, unwanted: Callable[[Any], bool]) -> None:
    """Delete entries of a repeated field in place, without a copy of the others."""
    for place in reversed(range(len(field))):
        if unwanted(field[place]):
            del field[place]


def _parsed(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise InputError(f"{path} does not exist: give a run folder or an ONNX file")
    if path.stat().st_size > LARGEST_FILE:
        raise InputError(f"{path} is larger than 2 GiB, more than an ONNX file can hold: export a smaller model")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except DecodeError:
        raise InputError(f"{path} is not an ONNX file, or it is cut short: export it again") from None
    if not model.opset_import or not model.graph.output:
        raise InputError(f"{path} is not an ONNX model (no operator set or no output in it), or it is cut short")
    return model


def tensors_of(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Give all initializers of a graph, the parts of sparse ones too."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _check_external(path: Path, model: onnx.ModelProto) -> None:
    """Say what is missing or too much before anything large is read."""
    size = path.stat().st_size
    for tensor in model.graph.initializer:
        if not external_data_helper.uses_external_data(tensor):
            continue
        info = external_data_helper.ExternalDataInfo(tensor)
        file = path.parent / info.location
        if not file.is_file():
            raise InputError(f"{path} needs {info.location} with the values of {tensor.name!r}: put it beside the file")
        size += info.length or file.stat().st_size - (info.offset or 0)
    if size > LARGEST_FILE:
        raise InputError(f"{path} is larger than 2 GiB with its external data, more than one ONNX file can hold")


def _check_model(path: Path, model: onnx.ModelProto) -> None:
    known = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    for tensor in tensors_of(model.graph):
        if tensor.data_type not in known:
            raise InputError(f"{path}: {tensor.name!r} has the unknown data type {tensor.data_type}; update onnx")
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise InputError(f"{path} is not a valid ONNX model ({_line(error)}): export it again") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
