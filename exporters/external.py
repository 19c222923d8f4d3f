"""Tensors that stand in other files: only regular files within the model's folder are read, as far as declared.

Each file is opened here, once: what was checked is what is read.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto

from rigl_compress.exporters.tensors import all_tensors, bytes_for, count_of
from rigl_compress.models.errors import InputError

_OPENING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class ExternalDataError(InputError):
    """A model asks for bytes that are none of its own."""


@dataclass(frozen=True)
class Span:
    """Where the bytes of a tensor stand; without a length, as many as its shape asks for."""

    tensor: TensorProto
    location: str
    offset: int
    length: int | None

    @property
    def size(self) -> int:
        """The bytes to read."""
        return self.wanted if self.length is None else self.length

    @property
    def wanted(self) -> int:
        """The bytes that the tensor's shape and type ask for."""
        return bytes_for(count_of(self.tensor), self.tensor.data_type)


def spans_of(model: onnx.ModelProto) -> list[Span]:
    """Give where every tensor of a model stands that is in another file, in whatever part of the model it is."""
    return [_span(tensor) for tensor in all_tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def check_spans(spans: Sequence[Span], folder: Path) -> None:
    """Refuse a model that would read anything else than regular files within its folder."""
    for span in spans:  # all of them, before anything is said about a file that is only missing or too short
        path = contained(span.location, folder, span.tensor.name)
        if path.exists():
            _check_regular(path.stat(), span)
    for span in spans:
        with opened(span, folder):
            pass


def load_spans(spans: Sequence[Span], folder: Path) -> None:
    """Read the bytes of tensors into the model itself."""
    for span in spans:
        with opened(span, folder) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(span.offset)
            span.tensor.raw_data = file.read(span.size)
        span.tensor.data_location = TensorProto.DEFAULT
        del span.tensor.external_data[:]


def _span(tensor: TensorProto) -> Span:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            raise ExternalDataError(f"tensor {tensor.name!r} has two entries {entry.key!r} for its external data")
        entries[entry.key] = entry.value
    numbers = {key: _number(tensor, key, entries[key]) for key in ("offset", "length") if key in entries}
    if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING) or (
        tensor.data_type not in TensorProto.DataType.values()
    ):
        raise InputError(f"tensor {tensor.name!r} of type {tensor.data_type} cannot be in another file; update onnx")
    return Span(tensor, entries.get("location", ""), numbers.get("offset", 0), numbers.get("length"))


def _number(tensor: TensorProto, key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise ExternalDataError(f"tensor {tensor.name!r} has the {key} {text[:40]!r}: a number of bytes was expected")
    return int(text)


@contextmanager
def opened(span: Span, folder: Path) -> Iterator[int]:
    """Open the file of a tensor, and give its descriptor, once it is known to be one that may be read."""
    path = contained(span.location, folder, span.tensor.name)
    if not path.exists():
        raise InputError(f"it needs {span.location} with the values of {span.tensor.name!r}: put it beside the file")
    _check_regular(path.stat(), span)  # before it is opened: to open a device can be an act
    try:
        descriptor = os.open(path, _OPENING)
    except OSError as error:
        raise InputError(f"the external data {span.location} cannot be read ({error.strerror})") from None
    try:
        _check_regular(os.fstat(descriptor), span)
        _check_span(span, os.fstat(descriptor).st_size)
        yield descriptor
    finally:
        os.close(descriptor)


def contained(location: str, folder: Path, name: str) -> Path:
    """Give the file of an external tensor, links followed; refuse one that is not within the model's folder.

    >>> contained("../secret", Path("models"), "w")
    Traceback (most recent call last):
    ...
    rigl_compress.exporters.external.ExternalDataError: tensor 'w' is to be read from '../secret', ...
    """
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    rooted = PurePosixPath(location).is_absolute() or bool(PureWindowsPath(location).anchor)
    # ONNX Runtime takes locations that begin with */ for addresses in its memory.
    plain = bool(parts) and "\0" not in location and ".." not in parts and not rooted and parts[0] != "*"
    found = _resolved(folder / location) if plain else None
    if found is None or not found.is_relative_to(folder.resolve()):
        raise ExternalDataError(
            f"tensor {name!r} is to be read from {location!r}, outside of the model's folder: "
            "put its file beside the model, and no link"
        )
    return found


def _resolved(path: Path) -> Path | None:
    try:
        found = path.resolve()
        found.exists()  # raises for a name that no file can have
        return found
    except (OSError, RuntimeError):  # links that lead to themselves, names that are too long
        return None


def _check_regular(found: os.stat_result, span: Span) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ExternalDataError(f"{span.location!r} of tensor {span.tensor.name!r} is no regular file: give one")
    if found.st_nlink > 1:  # a second name of a file that may stand anywhere
        raise ExternalDataError(
            f"{span.location!r} of tensor {span.tensor.name!r} is a hard link to a file that has other names: copy it"
        )


def _check_span(span: Span, size: int) -> None:
    if span.size != span.wanted or span.offset + span.size > size:
        raise InputError(
            f"tensor {span.tensor.name!r} needs {span.wanted:,} bytes, its external data are {span.size:,} from "
            f"{span.offset:,} of {span.location}, which has {size:,}: the file is damaged, export the model again"
        )
