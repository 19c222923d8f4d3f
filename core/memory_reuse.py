"""Freed memory that stays in the process: glibc returns large blocks, and each training step faults them in again."""

import ctypes
import os
import sys

_OPTIONS = (-1, -2, -3)  # M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD of malloc.h
_BYTES = 2**30
_CHOSEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def reuse_memory() -> bool:
    """Set the allocator of this process to keep blocks of up to 1 GiB, and return whether it does.

    Only on Linux with glibc, and unless the environment sets its allocator. For programs, not for libraries: it is the
    allocator of the whole process.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _CHOSEN):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all([set_option(option, _BYTES) == 1 for option in _OPTIONS])  # noqa: C419 - each of them is set
