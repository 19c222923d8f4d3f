"""What is known between runs of the driver: counts by reader, and inputs that reached something new."""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fuzzing.journal import Totals

BEGIN, KEPT = 60, 2000  # inputs that a child begins with, and that are kept of a reader
_COVERAGE = re.compile(rb"cov: (\d+)")


@dataclass
class State:
    """A folder with `state.json`, a corpus for each reader, logs and findings."""

    folder: Path
    counts: dict[str, dict[str, Any]]
    children: int = 0

    @classmethod
    def open(cls, folder: Path, resume: bool) -> "State":
        """Take up an earlier state, or begin anew; a corpus that was found stays in either case."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "state.json"
        if resume and file.exists():
            content = json.loads(file.read_text())
            return cls(folder, content["counts"], content["children"])
        for log in folder.glob("*.log"):
            log.unlink()
        return cls(folder, {})

    def corpus(self, reader: str) -> Path:
        """Return the folder of inputs that reached something new."""
        folder = self.folder / "corpus" / reader
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def some(self, reader: str, seed: int) -> list[Path]:
        """Draw some of these inputs: to begin with all of them would take a child longer than its work."""
        known = sorted(self.corpus(reader).iterdir())
        return Random(seed).sample(known, min(BEGIN, len(known)))

    def fresh_folder(self, reader: str, number: int) -> Path:
        """Return an empty folder for what a child will find."""
        folder = self.folder / "new" / f"{reader}-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def collect(self, reader: str, folder: Path) -> None:
        """Move what a child found to the others; of too many some are dropped."""
        known = self.corpus(reader)
        for file in folder.iterdir():
            file.replace(known / file.name)
        shutil.rmtree(folder)
        folder.with_suffix(".seeds").unlink(missing_ok=True)
        files = sorted(known.iterdir())
        for file in Random(self.children).sample(files, max(0, len(files) - KEPT)):
            file.unlink()

    def mutated(self, reader: str) -> int:
        """Return the number of mutated inputs so far."""
        return int(self.counts.get(reader, {}).get("inputs", 0))

    def add(self, reader: str, totals: Totals, log: Path) -> None:
        """Add what a child did, and write it down."""
        before: Mapping[str, Any] = self.counts.get(reader, {})
        edges = [int(found) for found in _COVERAGE.findall(log.read_bytes())] if log.exists() else []
        self.counts[reader] = {
            "inputs": before.get("inputs", 0) + totals.mutated,
            "executed": before.get("executed", 0) + totals.executed,
            "found": before.get("found", 0) + totals.found,
            "slowest": max(before.get("slowest", 0.0), totals.slowest),
            "peak_kib": max(before.get("peak_kib", 0), totals.peak_kib),
            "first_edges": before.get("first_edges") or (edges[0] if edges else 0),
            "edges": max([before.get("edges", 0), *edges]),
        }
        self.children += 1
        text = json.dumps({"counts": self.counts, "children": self.children}, indent=2)
        part = self.folder / "state.json.part"
        part.write_text(text)
        part.replace(self.folder / "state.json")
