"""The page about run folders names every key that a run writes, and each file once."""

import re
from pathlib import Path

import pytest
from tiny import Trainer

PAGE = (Path(__file__).parents[2] / "docs/reference/recipes.md").read_text()
SECTION = PAGE.partition("## A run folder")[2]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


@pytest.fixture
def rows() -> dict[str, str]:
    """The rows of the section's tables, by their first cell."""
    cells = [line.strip("| ").partition(" | ") for line in SECTION.splitlines() if line.startswith("| `")]
    found = {name: rest for name, _, rest in cells}
    assert len(found) == len(cells), "a row stands twice"
    return found


def test_every_key_of_a_line_of_metrics(trainer: Trainer, rows: dict[str, str]) -> None:
    line = next(trainer("train.epochs=1").metrics())
    assert line.keys() - named(rows["`metrics.jsonl`"]) == set()


def test_every_key_of_a_result(trainer: Trainer, rows: dict[str, str]) -> None:
    result = trainer("train.epochs=1").result()
    assert result.keys() - {"format"} - {key for name in rows for key in named(name)} == set()
    assert result["sparsity_by_weight"][0].keys() - named(rows["`sparsity_by_weight`"]) == set()
