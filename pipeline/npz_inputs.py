"""Inputs by name from an .npz file, whose sizes are checked before anything is unpacked."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.data.bounded_decompression import check_packing

MOST = 2**30  # of all arrays together, in bytes
MOST_ARRAYS = 1000  # models have a few inputs
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_inputs(path: Path | None) -> Mapping[str, NDArray[Any]] | None:
    """Read inputs by name from an .npz file."""
    if path is None:
        return None
    _check_exists(path)
    try:
        with ZipFile(path) as packed:
            _check_sizes(packed)
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:  # numpy and zipfile raise many kinds of errors for a damaged archive
        reason = first_line(error)
        raise InputError(f"{path} is not an .npz file of arrays ({reason}): write one with numpy.savez") from None
    if not found:
        raise InputError(f"{path} is empty: save the inputs by their names with numpy.savez")
    return found


def read_array(path: Path) -> NDArray[Any]:
    """Read the array of an .npy file."""
    _check_exists(path)
    try:
        with path.open("rb") as file:
            _check_header(path.name, path.stat().st_size, file)
            file.seek(0)
            found: NDArray[Any] = np.load(file, allow_pickle=False)
    except Exception as error:  # as above
        raise InputError(f"{path} is not an .npy file ({first_line(error)}): write one with numpy.save") from None
    return found


def _check_exists(path: Path) -> None:
    if not path.exists():
        raise InputError(f"{path} does not exist: pass a file that numpy.savez or numpy.save wrote")


def _check_sizes(packed: ZipFile) -> None:
    if len(packed.infolist()) > MOST_ARRAYS:
        raise ValueError(f"{len(packed.infolist()):,} arrays, at most {MOST_ARRAYS:,} are read")
    total = sum(info.file_size for info in packed.infolist())
    if total > MOST:
        raise ValueError(f"it unpacks to {total:,} bytes, at most {MOST:,} are read")
    for info in packed.infolist():
        check_packing(info)
        with packed.open(info) as file:
            _check_header(info.filename, info.file_size, file)


def _check_header(name: str, size: int, file: IO[bytes]) -> None:
    """Raise if the header of an array does not match its size: memory is allocated by the header."""
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"{name} is of version {version}")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if file.tell() + prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{name} has {size:,} bytes, which do not fit its shape {shape}")
