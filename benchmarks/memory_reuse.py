"""Keep freed memory in the process: glibc gives large blocks back to the system, and each step faults them in again."""

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of malloc.h
_BYTES = 2**30


def reuse_memory() -> bool:
    """Set the allocator of this process, on Linux with glibc; return whether it was."""
    if sys.platform != "linux":
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return min(set_option(key, _BYTES) for key in (_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD)) == 1
