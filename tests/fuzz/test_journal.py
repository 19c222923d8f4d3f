"""The journal in shared memory: a parent reads it while the child writes."""

import os
import signal
from time import monotonic

from fuzzing.journal import Journal, Totals


def test_a_read_never_sees_half_a_write() -> None:
    """`computed` is what the time of an input is counted from: a 0 in its place would be a hang."""
    journal = Journal()
    journal.begin(totals := Totals(computed=5.0), b"")
    totals.began = totals.computed = 5.0
    journal._write(totals, 0)
    child = os.fork()
    while not child:
        journal._write(totals, 0)
    try:
        end, reads = monotonic() + 0.3, []
        while monotonic() < end:
            reads.append(journal.read())
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert {(each.began, each.computed) for each in reads} == {(5.0, 5.0)}
