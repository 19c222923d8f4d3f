"""Warnings as lines, for those who listen to a run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rigl_compress.pipeline.train.progress import Say, say_nothing


@contextmanager
def spoken(say: Say) -> Iterator[None]:
    """Say the warnings of a block. Where nobody listens they stay warnings, but for what stands in the result anyway.

    >>> with spoken(print):
    ...     warnings.warn("fc has no connection")
    warning: fc has no connection
    """
    said: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in said:
            said.add(str(message))
            say(f"warning: {message}")

    with warnings.catch_warnings():
        if say is say_nothing:
            warnings.filterwarnings("ignore", "sparse training does not reach", UserWarning)
        else:
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = show
        yield
