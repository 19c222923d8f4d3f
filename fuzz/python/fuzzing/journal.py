"""What a child tells its parent while it works, in shared memory: it survives a crash of the child."""

import mmap
import struct
from dataclasses import dataclass
from time import monotonic, process_time

_HEAD = struct.Struct("<QQQQdddQ")
_INPUT = 4096  # where the current input begins
SPACE = (1 << 20) + 64 + _INPUT


@dataclass
class Totals:
    """Counts of a child. `mutated`: inputs made by a mutation, which are those that count."""

    executed: int = 0
    mutated: int = 0
    found: int = 0
    peak_kib: int = 0
    slowest: float = 0.0
    began: float = 0.0  # of the current input; 0 between inputs
    computed: float = 0.0  # seconds of computing before it


class Journal:
    """Shared memory of one child."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SPACE)

    def read(self) -> Totals:
        """Return the counts."""
        *counts, _ = _HEAD.unpack_from(self._memory)
        return Totals(*counts)

    def begin(self, totals: Totals, data: bytes) -> None:
        """Note an input before it is tried."""
        kept = data[: SPACE - _INPUT]
        self._memory[_INPUT : _INPUT + len(kept)] = kept
        totals.began, totals.computed = monotonic(), process_time()
        self._write(totals, len(kept))

    def end(self, totals: Totals, seconds: float) -> None:
        """Note that an input was tried."""
        totals.executed += 1
        totals.slowest = max(totals.slowest, seconds)
        totals.began = 0.0
        self._write(totals, self._size())

    def _write(self, totals: Totals, size: int) -> None:
        counts = (totals.executed, totals.mutated, totals.found, totals.peak_kib)
        # In one copy: `pack_into` clears the memory first, and the parent would see no computing before this input.
        self._memory[: _HEAD.size] = _HEAD.pack(*counts, totals.slowest, totals.began, totals.computed, size)

    def _size(self) -> int:
        return int(_HEAD.unpack_from(self._memory)[-1])

    def current(self) -> bytes:
        """Return the latest input."""
        return bytes(self._memory[_INPUT : _INPUT + self._size()])
