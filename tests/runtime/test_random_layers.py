"""The command that compares sessions with ONNX Runtime on random layers: it counts, goes on, and sees what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.kernels import kernel_sets

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
SCRIPT = Path(__file__).parents[2] / "fuzz" / "layers" / "run.py"
SETS = kernel_sets() if not unavailable_reason() else []
# Compares with a tolerance of nothing: the last bits differ, and the graph is simplified.
STRICT = """
import compare, graphs, numpy
compare.TOLERANCE = 0
compare.take_every_layer()
drawn = (graphs.draw(numpy.random.default_rng(number)) for number in range(99))
spec = next(each for each in drawn if each["kind"] == "products" and each["density"] == 1)
found = compare.compare(spec)
assert "differs by" in found.wrong, found
simple = compare.simplified(spec, found.wrong)
assert len(simple["runs"]) == 1, simple
assert "differs by" in compare.compare(simple).wrong, simple
"""


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(word) for word in (sys.executable, *words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


@pytest.mark.parametrize("kernels", [*(pytest.param(name, marks=pytest.mark.slow) for name in SETS[:-1]), *SETS[-1:]])
def test_no_run_is_wrong(kernels: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    words = (SCRIPT, "--runs", "1000", "--seed", "11", "--kernels", kernels, "--log", log)
    first, again = call(*words), call(*words)
    assert first.returncode == 0, first.stderr
    assert "| 0 wrong |" in first.stdout
    assert again.stdout == first.stdout, "what is in the log is not done again"
    assert len(log.read_text().splitlines()) == 1


def test_a_wrong_number_is_seen_and_simplified(tmp_path: Path) -> None:
    done = call("-c", f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})\n{STRICT}")
    assert done.returncode == 0, done.stderr
