"""Every reader on its seeds, on all inputs that ever led to a finding, and on a few fresh mutations."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fuzzing.outcomes import Reader, findings_of
from fuzzing.readers import CORPUS, FINDINGS, all_readers

ROOT = Path(__file__).parents[2]
READERS = {reader.name: reader for reader in all_readers()}
MUTATIONS = 12
# These open models in ONNX Runtime, which a foreign one can end: mutated inputs are for children.
NEEDS_CHILDREN = {"onnx", "session", "sparse_runtime"}


def found_in(reader: Reader, data: bytes, folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [f"{each.kind} at {each.where} ({each.step})\n{each.text}" for each in findings_of(reader, data, folder)]


@pytest.mark.parametrize("name", READERS)
def test_seeds_and_past_findings(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = READERS[name]
    past = sorted((FINDINGS / name).glob("*"))
    for number, path in enumerate([*sorted((CORPUS / reader.corpus).iterdir()), *past]):
        assert found_in(reader, path.read_bytes(), tmp_path / str(number)) == [], path.name
    capsys.readouterr()


@pytest.mark.parametrize("name", READERS.keys() - NEEDS_CHILDREN)
def test_a_few_mutations(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader, rng = READERS[name], Random(0)
    seeds = [path.read_bytes() for path in sorted((CORPUS / reader.corpus).iterdir())]
    for number in range(MUTATIONS):
        data = reader.mutate(rng.choice(seeds), rng)
        assert found_in(reader, data, tmp_path / str(number)) == []
    capsys.readouterr()


@pytest.mark.slow
def test_ten_thousand_mutations(tmp_path: Path) -> None:
    """The same ones each time: looking for new findings is the work of `make fuzz`."""
    options = ["--plain", "--inputs", "10000", "--seed", "0", "--state", str(tmp_path)]
    command = [sys.executable, str(ROOT / "fuzz/python/run.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "| all |" in done.stdout
