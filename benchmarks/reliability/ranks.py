"""The processes of `train --processes N`, forked from a process that has imported everything."""

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from reliability import commands


class ForkedProcess:
    """What the launcher needs of `subprocess.Popen`, for a command line in a forked process."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.code: int | None = None
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                os.environ.update(env)
                for number in (signal.SIGTERM, signal.SIGINT):  # the launcher's handlers
                    signal.signal(number, signal.SIG_DFL)
                code = commands._called(list(command[3:]))
            finally:
                sys.stderr.flush()
                os._exit(code)

    def poll(self) -> int | None:
        """Return the exit code of a process that has ended."""
        if self.code is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if found else None
        return self.code

    def wait(self) -> int:
        """Wait for the end."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def fork_ranks() -> None:
    """Let the launcher fork the processes: each would import torch for seconds."""
    from rigl_compress.pipeline.train import launch_processes

    launch_processes._start_process = ForkedProcess  # type: ignore[assignment,misc]
