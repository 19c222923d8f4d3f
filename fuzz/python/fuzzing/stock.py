"""What ONNX Runtime alone does with a model that ended one of our processes."""

import os
import signal
import time

from fuzzing.sessions import stock


def stock_fate(data: bytes, seconds: float) -> str:
    """Return how a process ends that opens and runs a model with ONNX Runtime: "" if nothing is wrong with it."""
    pid = os.fork()
    if not pid:
        _open_and_leave(data)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else ""
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hang"


def _open_and_leave(data: bytes) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in (1, 2):
        os.dup2(nothing, place)
    try:
        stock(data)
    finally:
        os._exit(0)
