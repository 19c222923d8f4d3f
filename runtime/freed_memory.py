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


def give_back() -> None:
    """Return freed memory to the system: opening a model takes several times what running it does."""
    trim = _trim()
    if trim is not None:
        trim(ctypes.c_size_t(0))
