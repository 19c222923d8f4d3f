"""Where and when a result was made: every result carries these facts."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("rigl-compress", "torch", "numpy", "onnx", "onnxruntime")


def environment() -> dict[str, Any]:
    """Give machine, versions and date."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def command_line() -> str:
    """Give the command as a person would type it again: without the path of the program."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
