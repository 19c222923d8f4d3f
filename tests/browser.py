"""Debian's Chromium without a screen: to see what a page looks like to the people who open it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

# No sandbox: containers seldom allow it. No background networking: a test machine may have no network.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
        "--hide-scrollbars",
        "--virtual-time-budget=2000",
    ),
)


def browser() -> str:
    """The program, or a skip with the reason."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium here: apt-get install chromium")
    return found


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Open a page from disk."""
    command = [browser(), *_FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    environment = {**os.environ, "HOME": str(profile)}
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)


def width_of(page: Path, window: int, profile: Path) -> float:
    """How wide a page is in a window of so many pixels: more than these if anything sticks out."""
    return window * measure(page, window, profile, "[document.documentElement.scrollWidth/innerWidth]")[0]


def measure(page: Path, window: int, profile: Path, numbers: str) -> list[float]:
    """The numbers that an expression of JavaScript gives of a page in a window of so many pixels."""
    copy = profile.with_suffix(".html")
    script = f"<script>document.title='found '+({numbers}).join(' ')</script></body>"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    done = browse(copy, profile, f"--window-size={window},900", "--dump-dom")
    title = re.search(r"<title>found ([-\d. ]+)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    return [float(each) for each in title[1].split()]
