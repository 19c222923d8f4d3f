"""Run the trials of an experiment on a Ray cluster; a node that is lost costs its trials one more try."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from rigl_compress.core.errors import InputError, first_line, one_line
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.experiments.scheduler import (
    INTERVAL,
    Listeners,
    Schedule,
    advance_waiting,
    all_outcomes,
    died,
    filled,
    record,
    start_schedule,
)
from rigl_compress.experiments.trial_source import Outcome, Search
from rigl_compress.experiments.trial_task import Task
from rigl_compress.experiments.trials import Trial
from rigl_compress.pipeline.train.progress import Progress

SECONDS = 0.5  # between two looks at progress


def run_on_ray(
    trials: Sequence[Trial], task: Task, jobs: int, listeners: Listeners, search: Search | None = None
) -> list[Outcome]:
    """Run the trials on the cluster of `task.engine`, `jobs` at a time, as `run_all` does in local processes.

    Run folders and data are to be on a file system that all nodes share. A trial takes a CPU, or a GPU.
    """
    cluster = _Cluster(task)
    try:
        schedule = start_schedule(trials, task, listeners, search)
        while filled(schedule, jobs - len(cluster.running), listeners) or cluster.running:
            for trial in advance_waiting(schedule, jobs - len(cluster.running), listeners):
                cluster.start(trial)
                listeners.started(trial)
            cluster.collect(schedule, listeners)
    finally:
        cluster.close()
    return all_outcomes(schedule, trials)


class _Cluster:
    """The connection to Ray, and the trials that run there."""

    def __init__(self, task: Task) -> None:
        self.ray = optional_package("ray", "ray", "--engine ray")
        self.running: dict[Any, Trial] = {}
        self.task = replace(task, data_dir=task.data_dir and task.data_dir.resolve())
        address = task.engine.partition(":")[2]
        try:
            self.ray.init(address=address or None, log_to_driver=False, logging_level="error", include_dashboard=False)
        except Exception as error:  # Ray's own, and those of its connections
            raise InputError(
                f"no Ray cluster at {address or 'this machine'}: {one_line(error)}; start one with `ray start`, or "
                "leave out --engine"
            ) from None
        here = self.ray.get_runtime_context().get_node_id()
        near = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        self.board = self.ray.remote(num_cpus=0, scheduling_strategy=near)(Board).remote()
        gpus = {"num_gpus": 1} if task.device.startswith("cuda") else {"num_cpus": 1}
        self.work = self.ray.remote(max_retries=0, **gpus)(run_remotely)

    def start(self, trial: Trial) -> None:
        """Start a trial where there is room."""
        placed = replace(trial, path=trial.path.resolve())
        self.running[self.work.remote(placed, self.task, os.getcwd(), self.board)] = trial

    def collect(self, schedule: Schedule, listeners: Listeners) -> None:
        """Wait a moment for trials that end, and pass on the progress of the others."""
        ended, _ = self.ray.wait(list(self.running), timeout=SECONDS) if self.running else ([], [])
        for reference in ended:
            trial = self.running.pop(reference)
            if (outcome := self._outcome(reference, trial, schedule)) is not None:
                record(schedule, outcome, listeners)
        self._progress(schedule, listeners)

    def _outcome(self, reference: Any, trial: Trial, schedule: Schedule) -> Outcome | None:
        try:
            result, failure = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # the worker or its node is gone
            return died(schedule, trial, f"its worker was lost ({type(error).__name__}: {first_line(error)})")
        return Outcome(trial, result, failure)

    def _progress(self, schedule: Schedule, listeners: Listeners) -> None:
        with suppress(self.ray.exceptions.RayError):
            for key, progress in self.ray.get(self.board.taken.remote()):
                self._report(key, progress, schedule, listeners)

    def _report(self, key: tuple[str, int], progress: Progress, schedule: Schedule, listeners: Listeners) -> None:
        """Pass on the progress of a trial that still runs; end it if the search gives it up."""
        found = next(((reference, trial) for reference, trial in self.running.items() if trial.key == key), None)
        if found is None:
            return
        reference, trial = found
        listeners.progressed(trial, progress)
        if reason := schedule.search.stops(trial, progress):
            self.ray.cancel(reference, force=True)
            del self.running[reference]
            record(schedule, Outcome(trial, pruned=reason), listeners)

    def close(self) -> None:
        """End what runs, and leave the cluster."""
        for reference in self.running:
            with suppress(Exception):
                self.ray.cancel(reference, force=True)
        self.ray.shutdown()


class Board:
    """Keeps the progress of trials until the sweep takes it: every end of an epoch, and the latest of each trial."""

    def __init__(self) -> None:
        self.latest: dict[tuple[tuple[str, int], int], Progress] = {}

    def put(self, key: tuple[str, int], progress: Progress) -> None:
        """Add the progress of a trial, or replace what is of the same epoch."""
        self.latest[key, progress.epoch] = progress

    def taken(self) -> list[tuple[tuple[str, int], Progress]]:
        """Return what is new since the last time."""
        found, self.latest = self.latest, {}
        return [(key, progress) for (key, _), progress in found.items()]


def run_remotely(trial: Trial, task: Task, folder: str, board: Any) -> tuple[dict[str, Any] | None, str]:
    """Run a trial in a worker of Ray; returns its result, or the reason why there is none."""
    if Path(folder).is_dir():  # paths in recipes are relative to it
        os.chdir(folder)
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        if monotonic() - last >= INTERVAL or progress.ends_epoch:
            last = monotonic()
            board.put.remote(trial.key, progress)

    try:
        return task(trial, report), ""
    except Exception as error:  # one failed trial does not lose the others; the table has its reason
        return None, " ".join(f"{type(error).__name__}: {error}".split())
