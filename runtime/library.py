"""The library with the sparse kernels: where it is, and whether it can be used here."""

import ctypes
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from rigl_compress.models.errors import InputError

NAME = "rigl_kernels.so"
OLDEST_RUNTIME = (1, 18)


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
    """Load the library; none where it is missing or does not fit this machine."""
    path = library_path()
    try:
        return None if path is None else ctypes.CDLL(str(path))
    except OSError:
        return None


def why_not() -> str:
    """Say why the kernels cannot be used, or nothing if they can."""
    import onnxruntime

    if library_path() is None:
        return "rigl-compress was installed without a C++ compiler: install one, then install the package again"
    if load_library() is None:
        return f"{library_path()} does not load on this machine: install the package again"
    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < OLDEST_RUNTIME:
        return f"ONNX Runtime {onnxruntime.__version__} is too old: install 1.18 or newer"
    return ""
