"""The library of sparse kernels: its path, and whether it can be used on this machine."""

import ctypes
import re
from functools import lru_cache
from pathlib import Path

from rigl_compress.core.errors import InputError
from rigl_compress.core.native_library import is_truncated, library_path

OLDEST_RUNTIME = (1, 18)
OPERATORS_VERSION = 6  # of the operators and the functions of the library: the same as in native/c_api.cpp


def kernels_library() -> Path:
    """Return the path of the library of sparse operators, which any host of ONNX Runtime can register: C++, C#, Java.

    >>> import onnxruntime
    >>> onnxruntime.SessionOptions().register_custom_ops_library(str(kernels_library()))
    """
    path, reason = library_path(), unavailable_reason()
    if reason or path is None:
        raise InputError(reason)
    return path.absolute()


@lru_cache
def load_library() -> ctypes.CDLL | None:
    """Load the library; return None if it is missing, does not load on this machine, or has another version."""
    path = library_path()
    try:
        library = None if path is None or is_truncated(path) else ctypes.CDLL(str(path))
        return library if library is not None and library.rigl_operators_version() == OPERATORS_VERSION else None
    except (OSError, AttributeError):
        return None


def unavailable_reason() -> str:
    """Return why the kernels cannot be used, or an empty string if they can."""
    import onnxruntime

    if library_path() is None:
        return "rigl-compress was installed without a C++ compiler: install one, then install the package again"
    if load_library() is None:
        return f"{library_path()} does not load on this machine: install the package again"
    version = re.match(r"(\d+)\.(\d+)", onnxruntime.__version__)
    if version is None or tuple(map(int, version.groups())) < OLDEST_RUNTIME:
        return f"ONNX Runtime {onnxruntime.__version__} is too old: install 1.18 or newer"
    return ""
