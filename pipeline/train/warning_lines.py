"""Warnings as messages of a run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rigl_compress.pipeline.train.progress import Log, ignore_message


@contextmanager
def warnings_to_log(log: Log) -> Iterator[None]:
    """Pass the warnings of a block on as messages. Without a listener they stay warnings, except what the result has.

    >>> with warnings_to_log(print):
    ...     warnings.warn("fc has no connection")
    warning: fc has no connection
    """
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            log(f"warning: {message}")

    with warnings.catch_warnings():
        if log is ignore_message:
            warnings.filterwarnings("ignore", "sparse training does not reach", UserWarning)
        else:
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = show
        yield
