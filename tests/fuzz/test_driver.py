"""The driver: what it counts when readers fail, crash and hang."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The state and the table after the readers with faults were run."""
    state = tmp_path_factory.mktemp("state")
    command = [sys.executable, str(ROOT / "tests/fuzz/planted.py"), str(state)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "fuzz/python")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120)
    return state, done.stdout


def kinds(state: Path, reader: str) -> set[str]:
    notes = (state / "findings" / reader).glob("*.json")
    return {json.loads(note.read_text())["kind"] for note in notes}


def counts(state: Path, reader: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "state.json").read_text())["counts"][reader]
    return found


def test_a_traceback_is_found_and_told(planted: tuple[Path, str]) -> None:
    state, table = planted
    assert kinds(state, "traceback") == {"KeyError"}
    assert counts(state, "traceback")["inputs"] == 200
    assert "- traceback: KeyError at elsewhere (read)" in table
    smallest = next((state / "findings" / "traceback").glob("*.bin")).read_bytes()
    assert smallest[0] >= 128


def test_a_refusal_in_a_sentence_is_none(planted: tuple[Path, str]) -> None:
    state, _ = planted
    assert kinds(state, "sentence") == set()
    assert counts(state, "sentence")["inputs"] == 200


@pytest.mark.parametrize(("reader", "kind"), [("crash", "signal-11"), ("endless", "hang"), ("asleep", "hang")])
def test_what_becomes_of_a_process_is_told(planted: tuple[Path, str], reader: str, kind: str) -> None:
    state, table = planted
    assert kinds(state, reader) == {kind}
    assert f"- {reader}: {kind} at " in table
