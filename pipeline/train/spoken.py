"""Warnings as lines, for those who listen to a run."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rigl_compress.pipeline.train.progress import Say, say_nothing


@contextmanager
def spoken(say: Say) -> Iterator[None]:
    """Say the warnings of a block. Where nobody listens they stay warnings, but for what stands in the result anyway.

    >>> with spoken(print):
    ...     warnings.warn("fc has no connection")
    warning: fc has no connection
    """
    with warnings.catch_warnings(record=say is not say_nothing) as caught:
        if caught is None:
            warnings.filterwarnings("ignore", "sparse training does not reach", UserWarning)
        else:
            warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(each.message) for each in caught or ()):
        say(f"warning: {text}")
