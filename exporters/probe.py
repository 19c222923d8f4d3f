"""Which random inputs a model runs on, found out in a process of its own: an operator that divides by zero ends it.

    python -m rigl_compress.exporters.probe FILE "[[2, null], [1, null], [1, 32]]" PID

For each pair (size of the batch, length of other free axes) it prints the place before the model is run, and "runs"
after it, if it gave something. It ends with the process PID, which started it.
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

from rigl_compress.exporters import verify
from rigl_compress.models.lifeline import end_with

Sizes = tuple[int, int | None]
LARGEST_INPUT = 2**22  # numbers; a picture of 16,000 × 16,000 would fill the memory


def running(path: Path, tries: Sequence[Sizes]) -> Iterator[Sizes]:
    """Give those of the sizes that a model runs on; a crash is a size that it does not run on."""
    left = list(tries)
    while left:
        # -P: not from the folder that one happens to be in
        arguments = [str(path), json.dumps(left), str(os.getpid())]
        command = [sys.executable, "-P", "-m", "rigl_compress.exporters.probe", *arguments]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
        places = [int(word) for word in told if word != "runs"]
        yield from (left[int(place)] for place, word in pairwise(told) if word == "runs")
        if not places:  # it does not even open
            return
        left = left[places[-1] + 1 :]


def look(path: Path, tries: Sequence[Sizes]) -> None:
    """Try the sizes one after the other, and say so."""
    session = verify.open_session(path)
    for place, (batch, length) in enumerate(tries):
        print(place, flush=True)
        if max(map(prod, verify.input_shapes(session, batch, length).values()), default=0) <= LARGEST_INPUT:
            _run(session, batch, length)


def _run(session: InferenceSession, batch: int, length: int | None) -> None:
    try:
        outputs = verify.run_session(session, verify.random_inputs(session, batch, length=length))
    except verify.VerificationError:
        return
    if any(each.size for each in outputs):
        print("runs", flush=True)


if __name__ == "__main__":
    end_with(int(sys.argv[3]))
    look(Path(sys.argv[1]), json.loads(sys.argv[2]))
