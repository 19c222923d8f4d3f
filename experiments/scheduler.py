"""Run trials in parallel, a process for each: one that fails or is killed does not affect the others."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from signal import Signals
from time import monotonic
from typing import Any, Protocol

from rigl_compress.core.folder_lock import LOCK
from rigl_compress.core.memory_reuse import reuse_memory
from rigl_compress.core.parent_process import end_with_parent
from rigl_compress.experiments.trial_source import NoSearch, Outcome, Search
from rigl_compress.experiments.trials import Trial
from rigl_compress.pipeline.train.progress import Listener, Progress

INTERVAL = 0.2  # seconds between two progress messages of a trial
_start_process = get_context("spawn").Process


class Work(Protocol):
    """What runs for a trial, in its own process unless it is done already; returns the result."""

    def __call__(self, trial: Trial, listener: Listener, /) -> dict[str, Any]:
        """Run a trial."""

    def done(self, trial: Trial, /) -> bool:
        """Check whether nothing is left to run."""


@dataclass(frozen=True)
class Listeners:
    """Callbacks: when a trial starts, as it progresses, when it has finished, and as its network is benchmarked."""

    started: Callable[[Trial], None] = lambda _: None
    progressed: Callable[[Trial, Progress], None] = lambda *_: None
    finished: Callable[[Outcome], None] = lambda _: None
    benched: Callable[[str, int, int], None] = lambda *_: None


@dataclass
class Schedule:
    """The trials that wait, those that run, and the outcomes so far."""

    waiting: list[Trial]
    running: dict[Connection, tuple[Trial, Any]] = field(default_factory=dict)
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    retried: set[tuple[str, int]] = field(default_factory=set)  # trials whose process died once
    search: Search = field(default_factory=NoSearch)  # where further trials come from


def run_all(
    trials: Sequence[Trial], work: Work, jobs: int, listeners: Listeners, search: Search | None = None
) -> list[Outcome]:
    """Run the trials, `jobs` at a time. A trial that starts from another waits for it, and fails if that one fails.

    With a search, further trials are those that it chooses; it can give them up before their end.
    """
    schedule = start_schedule(trials, work, listeners, search)
    try:
        while filled(schedule, jobs - len(schedule.running), listeners) or schedule.running:
            _advance(schedule, work, jobs, listeners)
    finally:  # after Ctrl-C too: no process is left
        for _, process in schedule.running.values():
            process.terminate()
        for _, process in schedule.running.values():
            process.join()
    return all_outcomes(schedule, trials)


def all_outcomes(schedule: Schedule, trials: Sequence[Trial]) -> list[Outcome]:
    """Return the outcomes of the given trials in their order, then those of a search."""
    given = [trial.key for trial in trials]
    return [schedule.outcomes[key] for key in (*given, *(key for key in schedule.outcomes if key not in given))]


def start_schedule(trials: Sequence[Trial], work: Work, listeners: Listeners, search: Search | None = None) -> Schedule:
    """Return the trials that are left to run, and the outcomes of those that are done."""
    schedule = Schedule([], search=search or NoSearch())
    for outcome in schedule.search.earlier():
        schedule.outcomes[outcome.trial.key] = outcome
        listeners.finished(outcome)
    for trial in trials:
        if work.done(trial):
            _remove_stale_lock(trial)
            record(schedule, Outcome(trial, trial.run.result()), listeners)
        else:
            schedule.waiting.append(trial)
    return schedule


def filled(schedule: Schedule, places: int, listeners: Listeners) -> bool:
    """Let the search choose trials for the free places; False: none waits."""
    while len(schedule.waiting) < places and (proposal := schedule.search.next()) is not None:
        if isinstance(proposal, Trial):
            schedule.waiting.append(proposal)
        else:
            record(schedule, proposal, listeners)
    return bool(schedule.waiting)


def _remove_stale_lock(trial: Trial) -> None:
    """Remove the lock file of a finished trial whose process was killed before it could."""
    if (trial.path / LOCK).exists():
        with trial.run.locked():
            pass


def _advance(schedule: Schedule, work: Work, jobs: int, listeners: Listeners) -> None:
    """Start the trials that can run, and wait for a message from one that does."""
    for trial in advance_waiting(schedule, jobs - len(schedule.running), listeners):
        schedule.running |= [_start(trial, work)]
        listeners.started(trial)
    for connection in wait(list(schedule.running)) if schedule.running else ():
        assert isinstance(connection, Connection)
        _receive(connection, schedule, listeners)


def advance_waiting(schedule: Schedule, places: int, listeners: Listeners) -> list[Trial]:
    """Take so many trials that can run from those that wait; record those that never can."""
    for outcome in _blocked(schedule):
        record(schedule, outcome, listeners)
    chosen = _ready(schedule)[:places]
    for trial in chosen:
        schedule.waiting.remove(trial)
    return chosen


def _ready(schedule: Schedule) -> list[Trial]:
    return [trial for trial in schedule.waiting if trial.needs is None or trial.needs in schedule.outcomes]


def _blocked(schedule: Schedule) -> Iterator[Outcome]:
    """Yield a failure for each trial that starts, directly or through others, from one that failed."""
    while lost := [trial for trial in _ready(schedule) if trial.needs and schedule.outcomes[trial.needs].failure]:
        for trial in lost:
            schedule.waiting.remove(trial)
            yield Outcome(trial, failure=f"{trial.row.after}, seed {trial.seed}, which it starts from, failed")


def record(schedule: Schedule, outcome: Outcome, listeners: Listeners) -> None:
    """Keep the outcome of a trial, and tell it."""
    outcome = schedule.search.ended(outcome)
    schedule.outcomes[outcome.trial.key] = outcome
    listeners.finished(outcome)


def _start(trial: Trial, work: Work) -> tuple[Connection, tuple[Trial, Any]]:
    ours, theirs = get_context("spawn").Pipe(duplex=False)
    process = _start_process(target=_run_trial, args=(trial, work, theirs))
    process.start()
    theirs.close()  # so that the end of the process closes the pipe, whatever the cause
    return ours, (trial, process)


def _run_trial(trial: Trial, work: Work, connection: Connection) -> None:
    """Run a trial in this process and send progress and outcome; a parent that no longer receives is no error."""
    end_with_parent()
    reuse_memory()
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if monotonic() - last >= INTERVAL or progress.ends_epoch:  # a search reads every epoch
            last = monotonic()
            connection.send(progress)

    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            found = Outcome(trial, work(trial, report))
        except Exception as error:  # one failed trial does not lose the others; the table has its reason
            found = Outcome(trial, failure=" ".join(f"{type(error).__name__}: {error}".split()))
        connection.send(found)
    connection.close()


def _receive(connection: Connection, schedule: Schedule, listeners: Listeners) -> None:
    trial, process = schedule.running[connection]
    message: Progress | Outcome | None
    try:
        message = connection.recv()
    except (EOFError, OSError):
        process.join()
        message = died(schedule, trial, _exit_reason(process.exitcode))
    if isinstance(message, Progress):
        listeners.progressed(trial, message)
        if not (reason := schedule.search.stops(trial, message)):
            return
        process.terminate()
        message = Outcome(trial, pruned=reason)
    process.join()
    connection.close()
    del schedule.running[connection]
    if message is not None:
        record(schedule, message, listeners)


def died(schedule: Schedule, trial: Trial, reason: str) -> Outcome | None:
    """Let a trial whose process died try once more, from its checkpoint; None: it does. A second time it failed."""
    if trial.key in schedule.retried:
        return Outcome(trial, failure=f"{reason} (twice)")
    schedule.retried.add(trial.key)
    schedule.waiting.insert(0, trial)
    return None


def _exit_reason(code: int | None) -> str:
    """Explain why a process ended without an outcome.

    >>> _exit_reason(-9), _exit_reason(3)
    ('its process was ended by SIGKILL: possibly out of memory, try fewer --jobs', 'its process ended with code 3')
    """
    if code is not None and code < 0:
        return f"its process was ended by {Signals(-code).name}: possibly out of memory, try fewer --jobs"
    return f"its process ended with code {code}"
