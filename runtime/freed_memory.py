"""Memory that Python and numpy have freed, given back to the system where the C library can do that."""

import ctypes
from functools import lru_cache
from typing import Any


@lru_cache
def _trim() -> Any:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    except (OSError, TypeError):
        return None


def forget_bytes(session: Any) -> None:
    """Drop the bytes that ONNX Runtime's session in Python holds to open its model again with other providers."""
    if getattr(session, "_model_bytes", None):
        session._model_bytes = b""


def give_back() -> None:
    """Return freed memory to the system: opening a model and planning its layers take more than running it."""
    trim = _trim()
    if trim is not None:
        trim(ctypes.c_size_t(0))
