"""The library with the sparse kernels: where it is, and whether it can be used here."""

import ctypes
import os
import re
import struct
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from rigl_compress.models.errors import InputError

NAME = "rigl_kernels.so"
OLDEST_RUNTIME = (1, 18)
OPERATORS_VERSION = 2  # of what operators compute, and of what is passed to the kernels: as in native/c_api.cpp
# The table of sections ends a file of 64 bits: its start, the size of an entry, and their number stand in the header.
_ELF = struct.Struct("<40xQ10xHH")


def library_path() -> Path | None:
    """Give the place of the library; none where the package was installed without a compiler.

    The variable RIGL_COMPRESS_LIBRARY names another one.
    """
    if given := os.environ.get("RIGL_COMPRESS_LIBRARY"):
        return Path(given)
    package = find_spec("rigl_compress")
    folders = () if package is None else package.submodule_search_locations or ()
    places = (Path(folder) / NAME for folder in folders)
    return next((place for place in places if place.is_file()), None)


def kernels_library() -> Path:
    """Give the library with the sparse operators, which any host of ONNX Runtime can register: C++, C#, Java.

    >>> import onnxruntime
    >>> onnxruntime.SessionOptions().register_custom_ops_library(str(kernels_library()))
    """
    path, reason = library_path(), why_not()
    if reason or path is None:
        raise InputError(reason)
    return path.absolute()


@lru_cache
def load_library() -> ctypes.CDLL | None:
    """Load the library; none where it is missing, does not fit this machine, or has operators of another version."""
    path = library_path()
    try:
        library = None if path is None or is_cut_short(path) else ctypes.CDLL(str(path))
        return library if library is not None and library.rigl_operators_version() == OPERATORS_VERSION else None
    except (OSError, AttributeError):
        return None


def is_cut_short(path: Path) -> bool:
    """Tell whether the end of a library is missing: it would load, and end the process when the end is read."""
    with path.open("rb") as file:
        header = file.read(_ELF.size)
    if len(header) < _ELF.size or not header.startswith(b"\x7fELF\x02\x01"):  # what else there is, the loader sees
        return False
    *_, start, size, count = _ELF.unpack(header)
    return bool(start + size * count > path.stat().st_size)


def why_not() -> str:
    """Say why the kernels cannot be used, or nothing if they can."""
    import onnxruntime

    if library_path() is None:
        return "rigl-compress was installed without a C++ compiler: install one, then install the package again"
    if load_library() is None:
        return f"{library_path()} does not load on this machine: install the package again"
    version = re.match(r"(\d+)\.(\d+)", onnxruntime.__version__)
    if version is None or tuple(map(int, version.groups())) < OLDEST_RUNTIME:
        return f"ONNX Runtime {onnxruntime.__version__} is too old: install 1.18 or newer"
    return ""
