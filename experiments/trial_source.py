"""Where the scheduler gets its trials from: a list, or a search that chooses the next trial by the outcomes so far."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rigl_compress.experiments.trials import Trial
from rigl_compress.pipeline.metrics import metric_of
from rigl_compress.pipeline.train.progress import Progress


@dataclass(frozen=True)
class Outcome:
    """The end of a trial: its result, the reason for its failure, or when and why a search gave it up."""

    trial: Trial
    result: Mapping[str, Any] | None = None
    failure: str = ""
    pruned: str = ""

    def __str__(self) -> str:
        """Summarize in a line."""
        if self.pruned:
            return f"{self.trial.name}: pruned {self.pruned}"
        if self.result is None:
            return f"{self.trial.name}: failed, {self.failure}"
        metric = metric_of(self.result)
        final, best = map(metric.show, metric.final_and_best(self.result))
        return f"{self.trial.name}: {metric.title} {final}, best {best}"


class Search(Protocol):
    """What chooses trials while others run."""

    def earlier(self) -> Iterable[Outcome]:
        """The outcomes of trials that ended before, of a search that is resumed."""

    def next(self) -> Trial | Outcome | None:
        """A further trial, or the outcome of one that cannot run; None: there are no more."""

    def stops(self, trial: Trial, progress: Progress, /) -> str:
        """When and why a trial is given up at this point; empty: it goes on."""

    def ended(self, outcome: Outcome, /) -> Outcome:
        """Learn from an outcome; return it as it is to be listed."""


class NoSearch:
    """All trials are given beforehand."""

    def earlier(self) -> Iterable[Outcome]:
        """None."""
        return ()

    def next(self) -> Trial | Outcome | None:
        """None."""
        return None

    def stops(self, trial: Trial, progress: Progress, /) -> str:
        """Let every trial go on."""
        del trial, progress
        return ""

    def ended(self, outcome: Outcome, /) -> Outcome:
        """Return it as it is."""
        return outcome
