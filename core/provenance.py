"""Where and when a result was made: every result carries these facts."""

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("rigl-compress", "torch", "numpy", "onnx", "onnxruntime", "openvino")
# What matters for the speed of kernels.
_FLAGS = {"sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bw", "avx512_vnni", "avx_vnni"} | {
    "avx512_bf16",
    "amx_tile",
    "asimd",
    "sve",
}


def environment() -> dict[str, Any]:
    """Return machine, versions and date; the load is that of the last 1, 5 and 15 minutes."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_line("model name") or platform.processor() or platform.machine(),
        "cpu_flags": [flag for flag in _cpu_line("flags").split() if flag in _FLAGS],
        "cores": os.cpu_count(),
        "governor": _governor(),
        "load": [round(each, 2) for each in os.getloadavg()] if hasattr(os, "getloadavg") else [],
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
    }


def command_line() -> str:
    """Return the command as a user would type it: without the path of the program."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _cpu_line(name: str) -> str:
    """Return the name of the first processor; empty where the system does not report it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _governor() -> str:
    """Return the CPU frequency governor: one that saves power makes short runs slow."""
    try:
        return Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").read_text(encoding="utf-8").strip()
    except OSError:
        return "unknown"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
