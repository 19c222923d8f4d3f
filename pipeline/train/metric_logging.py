"""The metrics of a run as they come, for experiment trackers. A logger that fails does not end the training."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rigl_compress.core.errors import first_line

# (step, metrics), after every epoch. Two more methods are called if a logger has them: `begin(name, settings)` before
# the first step, and `end()`.
MetricLogger = Callable[[int, Mapping[str, Any]], None]


class MetricLoggers:
    """Calls all loggers; one that fails is named in a warning, and called no more."""

    def __init__(self, loggers: Sequence[MetricLogger]) -> None:
        self._loggers = list(loggers)

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Pass on the metrics of an epoch."""
        self._each(lambda logger: logger(step, metrics))

    @contextmanager
    def during(self, name: str, settings: Mapping[str, Any]) -> Iterator[None]:
        """Begin and end the loggers around a training, however it ends."""
        self._each(lambda logger: getattr(logger, "begin", _nothing)(name, settings))
        try:
            yield
        finally:
            self._each(lambda logger: getattr(logger, "end", _nothing)())

    def _each(self, call: Callable[[MetricLogger], None]) -> None:
        for logger in list(self._loggers):
            try:
                call(logger)
            except Exception as error:  # foreign code can raise anything
                self._loggers.remove(logger)
                warnings.warn(_failure(logger, error), stacklevel=3)


def _nothing(*_: object) -> None:
    """Stand in for a method that a logger lacks."""


def _failure(logger: MetricLogger, error: Exception) -> str:
    name = getattr(logger, "__qualname__", type(logger).__name__)
    return f"the logger {name} gets no more metrics, it failed: {type(error).__name__}: {first_line(error)}"


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under joined keys.

    >>> flat({"seed": 1, "train": {"epochs": 2}})
    {'seed': 1, 'train.epochs': 2}
    """
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found
