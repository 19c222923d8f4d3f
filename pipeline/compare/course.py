"""Running many runs at a time, a process for each: one that fails, or is killed, takes no other with it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from signal import Signals
from time import monotonic
from typing import Any, Protocol

from rigl_compress.models.lifeline import end_with_parent
from rigl_compress.pipeline.compare.cells import Cell
from rigl_compress.pipeline.train.metrics import metric_of
from rigl_compress.pipeline.train.progress import Listener, Progress

OFTEN = 0.2  # seconds between two words about the progress of a run
_start_process = get_context("spawn").Process


class Work(Protocol):
    """What is done for a cell, in a process of its own unless it is done already; gives the result."""

    def __call__(self, cell: Cell, listener: Listener, /) -> dict[str, Any]:
        """Do it."""

    def done(self, cell: Cell, /) -> bool:
        """Say whether nothing is left to do."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run: a result, or the reason why there is none."""

    cell: Cell
    result: Mapping[str, Any] | None = None
    failure: str = ""

    def __str__(self) -> str:
        """Say it in a line."""
        if self.result is None:
            return f"{self.cell.name}: failed, {self.failure}"
        metric = metric_of(self.result)
        final, best = map(metric.show, metric.final_and_best(self.result))
        return f"{self.cell.name}: {metric.title} {final}, best {best}"


@dataclass(frozen=True)
class Watcher:
    """Who is told about runs: when one begins, how it goes on, when it ends."""

    begun: Callable[[Cell], None] = lambda _: None
    moved: Callable[[Cell, Progress], None] = lambda *_: None
    ended: Callable[[Outcome], None] = lambda _: None


@dataclass
class Course:
    """The state of affairs: what waits, what runs, what came out."""

    waiting: list[Cell]
    running: dict[Connection, tuple[Cell, Any]] = field(default_factory=dict)
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)


def run_all(cells: Sequence[Cell], work: Work, jobs: int, watcher: Watcher) -> list[Outcome]:
    """Run the cells, `jobs` at a time. A cell that starts from another waits for it, and fails if that one does."""
    course = Course([])
    for cell in cells:
        if work.done(cell):
            _note(course, Outcome(cell, cell.run.result()), watcher)
        else:
            course.waiting.append(cell)
    try:
        while course.waiting or course.running:
            for outcome in _hopeless(course):
                _note(course, outcome, watcher)
            for cell in _ready(course)[: jobs - len(course.running)]:
                course.waiting.remove(cell)
                course.running |= [_started(cell, work)]
                watcher.begun(cell)
            for connection in wait(list(course.running)) if course.running else ():
                assert isinstance(connection, Connection)
                _listen(connection, course, watcher)
    finally:  # Ctrl-C: nothing runs on behind the back of who stopped it
        for _, process in course.running.values():
            process.terminate()
        for _, process in course.running.values():
            process.join()
    return [course.outcomes[cell.key] for cell in cells]


def _ready(course: Course) -> list[Cell]:
    return [cell for cell in course.waiting if cell.needs is None or cell.needs in course.outcomes]


def _hopeless(course: Course) -> Iterator[Outcome]:
    """Give the cells that start from a run that failed; those that start from them in turn come next."""
    while lost := [cell for cell in _ready(course) if cell.needs and course.outcomes[cell.needs].failure]:
        for cell in lost:
            course.waiting.remove(cell)
            yield Outcome(cell, failure=f"{cell.row.after}, seed {cell.seed}, which it starts from, failed")


def _note(course: Course, outcome: Outcome, watcher: Watcher) -> None:
    course.outcomes[outcome.cell.key] = outcome
    watcher.ended(outcome)


def _started(cell: Cell, work: Work) -> tuple[Connection, tuple[Cell, Any]]:
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    process = _start_process(target=_in_process, args=(cell, work, theirs))
    process.start()
    theirs.close()  # now its end is seen here, whatever it dies of
    return ours, (cell, process)


def _in_process(cell: Cell, work: Work, connection: Connection) -> None:
    """Do the work and tell of it. Who listens no longer is no reason to say more than that."""
    end_with_parent()
    last = 0.0

    def tell(progress: Progress) -> None:
        nonlocal last
        if monotonic() - last >= OFTEN or progress.iteration == progress.iterations:
            last = monotonic()
            connection.send(progress)

    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            found = Outcome(cell, work(cell, tell))
        except Exception as error:  # one failed run does not lose the others; its reason is in the table
            found = Outcome(cell, failure=" ".join(f"{type(error).__name__}: {error}".split()))
        connection.send(found)
    connection.close()


def _listen(connection: Connection, course: Course, watcher: Watcher) -> None:
    cell, process = course.running[connection]
    try:
        told = connection.recv()
    except (EOFError, OSError):
        process.join()
        told = Outcome(cell, failure=_death(process.exitcode))
    if isinstance(told, Progress):
        watcher.moved(cell, told)
        return
    process.join()
    connection.close()
    del course.running[connection]
    _note(course, told, watcher)


def _death(code: int | None) -> str:
    """Say what a process died of.

    >>> _death(-9), _death(3)
    ('its process was ended by SIGKILL: is there too little memory? Try fewer --jobs', 'its process ended with code 3')
    """
    if code is not None and code < 0:
        return f"its process was ended by {Signals(-code).name}: is there too little memory? Try fewer --jobs"
    return f"its process ended with code {code}"
