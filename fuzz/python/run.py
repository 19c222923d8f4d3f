"""Fuzzes all readers: coverage-guided where atheris is installed, with our own mutators in any case.

python fuzz/python/run.py --inputs 300000 --jobs 2 --seed 0 --resume
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from fuzzing.package import has_atheris, load_package

STATE = Path(__file__).resolve().parents[1] / "state"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=300_000, help="mutated inputs in all, shared out to the readers")
    parser.add_argument("--seconds", type=float, default=86_400, help="stop after so many seconds")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--resume", action="store_true", help="count on from the earlier state")
    parser.add_argument("--readers", help="only these, with commas between them")
    parser.add_argument("--plain", action="store_true", help="without coverage, even if atheris is installed")
    parser.add_argument("--state", type=Path, default=STATE, help="folder of counts, corpora and findings")
    return parser.parse_args()


def main() -> int:
    """Fuzz, print the table, and say by the exit code whether anything was found."""
    chosen = _arguments()
    began = time.monotonic()
    guided = has_atheris() and not chosen.plain
    if not guided:
        print("without coverage: install atheris for guided fuzzing (pip install --group fuzz)", file=sys.stderr)
    load_package(guided)
    from fuzzing.driver import Driver
    from fuzzing.readers import CORPUS, all_readers, warm_up
    from fuzzing.state import State
    from fuzzing.table import report

    names = chosen.readers.split(",") if chosen.readers else None
    readers = [each for each in all_readers() if names is None or each.name in names]
    if not chosen.resume:
        shutil.rmtree(chosen.state / "findings", ignore_errors=True)
    state = State.open(chosen.state, chosen.resume)
    driver = Driver(readers, state, CORPUS, chosen.jobs, guided, chosen.inputs, began + chosen.seconds, chosen.seed)
    warm_up(readers)
    driver.run()
    print(report(state.counts, driver.shelf.all()))
    return int(any(not each["kind"].startswith("shared-") for found in driver.shelf.all().values() for each in found))


if __name__ == "__main__":
    sys.exit(main())
