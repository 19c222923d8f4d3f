"""External data: tensors in other files. Only regular files within the model's folder are read.

Each file is opened once, so that the file that was checked is the file that is read.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.bounded_tensors import all_tensors, bytes_for, count_of

_OPENING = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class ExternalDataError(InputError):
    """A model refers to external data that it may not read."""


@dataclass(frozen=True)
class Span:
    """The location of the bytes of a tensor; without a length, as many as its shape needs."""

    tensor: TensorProto
    location: str
    offset: int
    length: int | None

    @property
    def size(self) -> int:
        """Number of bytes to read."""
        return self.wanted if self.length is None else self.length

    @property
    def wanted(self) -> int:
        """Number of bytes that the tensor's shape and type need."""
        return bytes_for(count_of(self.tensor), self.tensor.data_type)


def spans_of(model: onnx.ModelProto) -> list[Span]:
    """Return the locations of all tensors of a model that are in other files."""
    return [span_of(tensor) for tensor in all_tensors(model) if tensor.data_location == TensorProto.EXTERNAL]


def check_spans(spans: Sequence[Span], folder: Path) -> None:
    """Raise `InputError` for a model that reads anything but regular files within its folder."""
    for span in spans:  # forbidden files are reported before missing and short ones
        path = contained(span.location, folder, span.tensor.name)
        if path.exists():
            _check_regular(path.stat(), span)
    for span in spans:
        with opened(span, folder):
            pass


def load_spans(spans: Sequence[Span], folder: Path) -> None:
    """Read the bytes of tensors into the model."""
    for span in spans:
        with opened(span, folder) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
            file.seek(span.offset)
            span.tensor.raw_data = file.read(span.size)
        span.tensor.data_location = TensorProto.DEFAULT
        del span.tensor.external_data[:]


def span_of(tensor: TensorProto) -> Span:
    """Return the location of a tensor in another file."""
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
        raise ExternalDataError(f"tensor {tensor.name!r} has the {key} {text[:40]!r}, expected a number of bytes")
    return int(text)


@contextmanager
def opened(span: Span, folder: Path) -> Iterator[int]:
    """Open the file of a tensor and yield its descriptor, after checking that it may be read."""
    path = contained(span.location, folder, span.tensor.name)
    if not path.exists():
        raise InputError(f"{span.location} with the values of {span.tensor.name!r} is missing: put it beside the model")
    _check_regular(path.stat(), span)  # before it is opened: opening a device can have effects
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
    """Return the file of an external tensor, links resolved; raise if it is outside the model's folder.

    >>> contained("../secret", Path("models"), "w")
    Traceback (most recent call last):
    ...
    rigl_compress.exporters.external_data.ExternalDataError: tensor 'w' refers to '../secret', ...
    """
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    rooted = PurePosixPath(location).is_absolute() or bool(PureWindowsPath(location).anchor)
    # ONNX Runtime takes locations that start with */ for addresses in memory.
    plain = bool(parts) and "\0" not in location and ".." not in parts and not rooted and parts[0] != "*"
    found = _resolved(folder / location) if plain else None
    if found is None or not found.is_relative_to(folder.resolve()):
        raise ExternalDataError(
            f"tensor {name!r} refers to {location!r}, outside the model's folder: "
            "put the file itself beside the model, not a link"
        )
    return found


def _resolved(path: Path) -> Path | None:
    try:
        found = path.resolve()
        found.exists()  # raises for a name that is not valid
        return found
    except (OSError, RuntimeError):  # links that lead to themselves, names that are too long
        return None


def _check_regular(found: os.stat_result, span: Span) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ExternalDataError(f"{span.location!r} of tensor {span.tensor.name!r} is not a regular file, expected one")
    if found.st_nlink > 1:  # another name of a file that can be anywhere
        raise ExternalDataError(
            f"{span.location!r} of tensor {span.tensor.name!r} is a hard link to a file that has other names: copy it"
        )


def _check_span(span: Span, size: int) -> None:
    if span.size != span.wanted or span.offset + span.size > size:
        raise InputError(
            f"tensor {span.tensor.name!r} needs {span.wanted:,} bytes, its external data are {span.size:,} from "
            f"{span.offset:,} of {span.location}, which has {size:,}: the file is damaged, export the model again"
        )
