"""When a checkpoint is written within an epoch: every so many steps or minutes, and on SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from rigl_compress.pipeline.recipe import TrainConfig
from rigl_compress.pipeline.train.process_group import ALONE, World

SECONDS = 1.0  # between two moments at which several processes ask each other whether to stop
MOST_STEPS = 100


@dataclass
class Moments:
    """Decides, in all processes alike, after which optimizer step to write a checkpoint, and whether to stop then.

    The clock is that of rank 0. Several processes talk about once a second: rank 0 says after how many steps next.
    """

    config: TrainConfig
    world: World = ALONE
    stopped: bool = False  # by a signal
    _steps: int = 0
    _saved: float = field(default_factory=monotonic)
    _asked: tuple[int, float] = field(default_factory=lambda: (0, monotonic()))
    _next: int = 1

    def after_step(self) -> str:
        """Return "save", "stop" or "" after an optimizer step."""
        self._steps += 1
        every = self.config.checkpoint_steps
        answer = "save" if every and self._steps % every == 0 else ""
        if self._steps >= self._next:
            answer = self._ask() or answer
        if answer:
            self._saved = monotonic()
        return answer

    def _ask(self) -> str:
        minutes = self.config.checkpoint_minutes
        late = bool(minutes) and monotonic() - self._saved >= 60 * minutes
        pace = (monotonic() - self._asked[1]) / max(1, self._steps - self._asked[0])
        found = self.world.gather((self.stopped, late, min(MOST_STEPS, max(1, int(SECONDS / max(pace, 1e-6))))))
        self._asked = (self._steps, monotonic())
        self._next = self._steps + (1 if self.world.alone else found[0][2])
        return "stop" if any(stopped for stopped, _, _ in found) else "save" if found[0][1] else ""


@contextmanager
def stopping_on_sigterm(moments: Moments) -> Iterator[None]:
    """Let SIGTERM end training at the next step, unless the program has a handler of its own."""

    def stop(*_: Any) -> None:
        moments.stopped = True

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
