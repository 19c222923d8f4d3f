"""Finding the sizes of random inputs that a model runs on, in a separate process: an integer division by zero ends it.

    python -m rigl_compress.exporters.input_size_probe FILE "[[2, null], [1, null], [1, 32]]" PID

For each pair (batch size, length of other dynamic axes) it prints the index of the pair before the run, and "runs"
afterwards if there were outputs. It ends when the process PID ends, which started it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path

from onnxruntime import InferenceSession

from rigl_compress.core.parent_process import end_with
from rigl_compress.exporters.ort_sessions import SessionError, open_session, run_session
from rigl_compress.exporters.random_inputs import random_inputs, session_inputs, sized

Sizes = tuple[int, int | None]
LARGEST_PROBE = 2**22  # elements; an image of 16,000 × 16,000 would fill the memory


def runnable_sizes(path: Path, tries: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield the sizes that a model runs on; a size that crashes the process is skipped."""
    left = list(tries)
    while left:
        # -P: do not import from the current folder
        arguments = [str(path), json.dumps(left), str(os.getpid())]
        command = [sys.executable, "-P", "-m", "rigl_compress.exporters.input_size_probe", *arguments]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        started = [int(word) for word in printed if word != "runs"]
        yield from (left[int(index)] for index, word in pairwise(printed) if word == "runs")
        if not started:  # the model does not open
            return
        left = left[started[-1] + 1 :]


def probe(path: Path, tries: Sequence[Sizes]) -> None:
    """Run the model on each of the sizes, and print the progress."""
    session = open_session(path)
    for index, (batch, length) in enumerate(tries):
        print(index, flush=True)
        if max(map(prod, sized(session_inputs(session), batch, length).values()), default=0) <= LARGEST_PROBE:
            _run(session, batch, length)


def _run(session: InferenceSession, batch: int, length: int | None) -> None:
    try:
        outputs = run_session(session, random_inputs(session, batch, length=length))
    except SessionError:
        return
    if any(each.size for each in outputs):
        print("runs", flush=True)


if __name__ == "__main__":
    end_with(int(sys.argv[3]))
    probe(Path(sys.argv[1]), json.loads(sys.argv[2]))
