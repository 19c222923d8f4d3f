"""Freed memory that stays in the process, counted in page faults of a process of its own."""

import os
import subprocess
import sys

import pytest

FAULTS = """
import ctypes, resource, sys
from rigl_compress.core.memory_reuse import reuse_memory
print(reuse_memory() if sys.argv[1] == "reuse" else False)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(12):
    block = libc.malloc(40_000_000)
    ctypes.memset(block, 1, 40_000_000)
    libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


def faults(how: str, **environment: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    said, count = done.stdout.split()
    return said, int(count)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_blocks_are_faulted_in_once() -> None:
    (said, few), (_, many) = faults("reuse"), faults("leave")
    if said == "False":
        pytest.skip("another C library, or the environment sets the allocator")
    assert many - few > 6 * 40_000_000 / os.sysconf("SC_PAGE_SIZE"), "half of the blocks, at least"


def test_the_environment_decides() -> None:
    assert faults("reuse", GLIBC_TUNABLES="glibc.malloc.top_pad=1")[0] == "False"
