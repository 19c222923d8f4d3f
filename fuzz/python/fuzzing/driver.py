"""The parent: forks a child for a slice of a reader's inputs, watches it, and forks the next."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzzing.child import Work, work
from fuzzing.findings import Shelf
from fuzzing.journal import Journal, Totals
from fuzzing.outcomes import Reader
from fuzzing.state import State
from fuzzing.stock import stock_fate

SLOW = 10.0  # seconds for an input
SLICE = 20_000  # inputs of a child
IDLE = 60.0  # seconds without an input
LOOK = 0.05  # seconds between looks at children


@dataclass
class Child:
    """A child at work."""

    pid: int
    task: Work
    journal: Journal
    log: Path
    hung: bool = False
    executed: int = 0
    since: float = field(default_factory=time.monotonic)

    def is_stuck(self) -> bool:
        """Return whether an input computes for too long, or nothing happens at all, as it may seem under load."""
        totals, now = self.journal.read(), time.monotonic()
        if totals.executed != self.executed:
            self.executed, self.since = totals.executed, now
        return now - self.since > IDLE or (totals.began > 0 and self._computed() - totals.computed > SLOW)

    def _computed(self) -> float:
        """Return the seconds that the child's processors have worked."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class Driver:
    """Runs readers until their inputs or the time are used up. `corpus`: the committed seeds."""

    readers: Sequence[Reader]
    state: State
    corpus: Path
    jobs: int
    guided: bool
    inputs: int
    deadline: float
    seed: int
    _children: list[Child] = field(default_factory=list)
    _begun: int = 0

    @property
    def shelf(self) -> Shelf:
        """Where findings are kept."""
        return Shelf(self.state.folder / "findings")

    def run(self) -> None:
        """Run until everything is done."""
        while self._fill() or self._children:
            time.sleep(LOOK)
            for child in list(self._children):
                self._look(child)

    def _fill(self) -> bool:
        while len(self._children) < self.jobs and time.monotonic() < self.deadline:
            reader = self._next()
            if reader is None:
                return False
            self._children.append(self._start(reader))
        return bool(self._children)

    def _wanted(self, reader: Reader) -> int:
        return round(self.inputs * reader.share / sum(each.share for each in self.readers))

    def _left(self, reader: Reader) -> int:
        busy = sum(child.task.inputs - child.journal.read().mutated for child in self._of(reader))
        done = sum(child.journal.read().mutated for child in self._of(reader))
        return self._wanted(reader) - self.state.mutated(reader.name) - busy - done

    def _of(self, reader: Reader) -> Iterator[Child]:
        return (child for child in self._children if child.task.reader is reader)

    def _next(self) -> Reader | None:
        """Return the reader of which the largest part is left; with a time limit all get on at the same pace."""
        found = max(self.readers, key=lambda reader: self._left(reader) / max(1, self._wanted(reader)))
        return found if self._left(found) > 0 else None

    def _start(self, reader: Reader) -> Child:
        self._begun += 1
        inputs = min(SLICE, self._left(reader))
        seed = self.seed * 1_000_003 + self.state.children + self._begun
        committed = self.corpus / reader.corpus
        seeds = [*(sorted(committed.iterdir()) if committed.is_dir() else ()), *self.state.some(reader.name, seed)]
        new = self.state.fresh_folder(reader.name, self._begun)
        task = Work(reader, inputs, self._slice_seconds(), self.deadline, seed, self.guided, tuple(seeds), new)
        journal, log = Journal(), self.state.folder / f"{reader.name}.log"
        pid = os.fork()
        if not pid:
            work(task, journal, self.shelf, log)
        return Child(pid, task, journal, log)

    def _slice_seconds(self) -> float:
        """Every reader has its turn several times before the time is over."""
        left = self.deadline - time.monotonic()
        return max(5.0, left * self.jobs / (3 * len(self.readers)))

    def _look(self, child: Child) -> None:
        if not child.hung and child.is_stuck():
            child.hung = True
            os.kill(child.pid, signal.SIGKILL)
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            self._children.remove(child)
            self._ended(child, status)

    def _ended(self, child: Child, status: int) -> None:
        totals, name = child.journal.read(), child.task.reader.name
        if child.hung:
            totals.slowest = max(totals.slowest, SLOW)
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status):
            self._died(child, status, totals)
        self.state.collect(name, child.task.new)
        self.state.add(name, totals, child.log)

    def _died(self, child: Child, status: int, totals: Totals) -> None:
        """Find out whether ONNX Runtime alone shares the fate of an input."""
        if not totals.began:  # between inputs: not what was read, but what reads is to blame
            print(f"{child.task.reader.name}: a child ended between inputs, see {child.log}", file=sys.stderr)
        data, name = child.journal.current(), child.task.reader.name
        kind = "hang" if child.hung else f"signal-{os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "exit"
        shared = stock_fate(data, SLOW) if name in ("onnx", "session", "sparse_runtime") else ""
        self.shelf.add_process(name, f"shared-{kind}" if shared else kind, data, stock=shared)
        totals.found += not shared
        totals.executed += 1
