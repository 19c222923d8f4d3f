"""A thread in the place of a process, which takes seconds to import torch."""

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any


class ThreadInstead(Thread):
    """The interface of a process that the scheduler uses."""

    exitcode = 0

    def __init__(self, target: Callable[..., None], args: tuple[Any, Any, Connection]) -> None:
        trial, work, theirs = args  # a process would have its own end of the pipe
        super().__init__(target=target, args=(trial, work, Connection(os.dup(theirs.fileno()))))

    def terminate(self) -> None:
        """Let it end by itself."""
