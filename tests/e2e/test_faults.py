"""Faults at calls of the system: a sample of what `make faults` does for every one of them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def unavailable_reason() -> str:
    command = "from reliability.injection import unavailable_reason; print(unavailable_reason())"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=SCRIPTS, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_nothing_is_lost_torn_or_stuck() -> None:
    if reason := unavailable_reason():
        pytest.skip(reason)
    command = [sys.executable, SCRIPTS / "faults.py", "--every", "53", "--lanes", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    injected = int(done.stdout.split("| all |")[1].split("|")[2])
    assert injected > 10


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
def test_what_is_killed_goes_on() -> None:
    command = [sys.executable, SCRIPTS / "kills.py", "--kills", "5", "--grid-kills", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| train | 5 | 5 |" in done.stdout
