"""Time and memory that it takes to open a model, each time in a new process, as in deployment.

Run as a module it is that process: it reads a job from standard input, and imports ONNX Runtime and nothing of ours.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from rigl_compress.core.parent_process import end_with

TIMES = 3


@dataclass(frozen=True)
class Footprint:
    """Seconds to open a session, and the most memory that opening and a first run took beyond that of the process."""

    load_seconds: float
    peak_bytes: int


def footprints(paths: Mapping[str, Path], inputs: Mapping[str, Path], threads: int) -> dict[str, Footprint]:
    """Open each model a few times in turns, and return medians by label; one that cannot be opened is left out."""
    found: dict[str, list[Footprint]] = {label: [] for label in paths}
    for _ in range(TIMES):
        for label, path in paths.items():
            each = _fresh({"model": str(path), "inputs": str(inputs[label]), "threads": threads})
            found[label] += [] if each is None else [each]
    return {label: _middle(each) for label, each in found.items() if each}


def _middle(found: Sequence[Footprint]) -> Footprint:
    return Footprint(median(each.load_seconds for each in found), int(median(each.peak_bytes for each in found)))


def _fresh(job: Mapping[str, Any]) -> Footprint | None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],  # -P: import nothing from the working folder
        input=json.dumps({**job, "parent": os.getpid()}),
        capture_output=True,
        text=True,
        check=False,
    )
    return Footprint(**json.loads(done.stdout)) if done.returncode == 0 else None


def _own_memory(line: str) -> int:
    """Read a memory figure of this process from /proc, in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(each.split()[1]) * 1024 for each in lines if each.startswith(f"{line}:")), 0)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def main() -> None:
    """Open the model of the job on standard input, run it once, and print time and memory."""
    import numpy as np
    import onnxruntime as ort

    job = json.loads(sys.stdin.read())
    end_with(job["parent"])
    with np.load(job["inputs"], allow_pickle=False) as archive:
        inputs = {name: archive[name] for name in archive.files}
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = job["threads"]
    _forget_peak()
    before, begin = _own_memory("VmRSS"), perf_counter()
    session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    seconds = perf_counter() - begin
    session.run(None, inputs)
    print(json.dumps({"load_seconds": seconds, "peak_bytes": max(0, _own_memory("VmHWM") - before)}))


if __name__ == "__main__":
    main()
