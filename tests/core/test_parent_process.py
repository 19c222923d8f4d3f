"""A process that ends with its parent."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from rigl_compress.core import parent_process as lifeline

CHILD = """
import os, sys, time
from rigl_compress.core import parent_process as lifeline
if "alone" in sys.argv:
    lifeline._ask_kernel = lambda: None
lifeline.end_with(int(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys
child, way, parent = sys.argv[1:]
subprocess.run([sys.executable, "-c", child, parent if int(parent) else str(os.getpid()), way])
"""


def exists(pid: int) -> bool:
    """Whether a process runs; one that nobody has asked how it ended does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_for_end(pid: int) -> None:
    deadline = monotonic() + 30
    while exists(pid):
        assert monotonic() < deadline, "it goes on"
        sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
@pytest.mark.parametrize("way", ["kernel", "alone"])
def test_it_ends_when_its_parent_is_killed(way: str) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, way, "0"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as told:
        child = int(told.readline())
    assert exists(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    wait_for_end(child)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc here")
def test_it_ends_when_its_parent_was_gone_before() -> None:
    command = [sys.executable, "-c", PARENT, CHILD, "alone", "1"]  # 1 is not its parent
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_what_was_not_started_as_a_worker_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "end_with", lambda _: pytest.fail("it would end"))
    lifeline.end_with_parent()


@pytest.mark.skipif(os.name != "posix", reason="orphans have another parent there")
def test_what_opens_models_ends_without_who_asked_for_it() -> None:
    """The process in which `bench` measures memory."""
    command = [sys.executable, "-m", "rigl_compress.pipeline.bench.footprint"]
    job = json.dumps({"model": "none.onnx", "inputs": "none.npz", "threads": 1, "parent": 1})  # 1 is not its parent
    done = subprocess.run(command, input=job, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
