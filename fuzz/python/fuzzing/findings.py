"""Findings on disk: the smallest input of each, and what it led to."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzzing.outcomes import Finding


@dataclass(frozen=True)
class Shelf:
    """A folder of findings, one below it for each reader."""

    folder: Path

    def add(self, reader: str, finding: Finding, data: bytes) -> None:
        """Keep a finding; of several inputs that lead to the same one, the smallest."""
        self._keep(reader, finding.key, asdict(finding), data)

    def add_process(self, reader: str, kind: str, data: bytes, **facts: Any) -> None:
        """Keep what became of a process: a signal, a hang, or too much memory."""
        digest = hashlib.sha256(data).hexdigest()[:12]
        self._keep(reader, f"{kind}-{digest}", {"step": "process", "kind": kind, "where": digest, **facts}, data)

    def keep_slowest(self, reader: str, data: bytes) -> None:
        """Keep the slowest input so far, which is no finding."""
        folder = self.folder.with_name("slowest")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{reader}.bin").write_bytes(data)

    def _keep(self, reader: str, key: str, facts: dict[str, Any], data: bytes) -> None:
        folder = self.folder / reader
        folder.mkdir(parents=True, exist_ok=True)
        note, content = folder / f"{key}.json", folder / f"{key}.bin"
        before = json.loads(note.read_text()) if note.exists() else {"times": 0}
        if not content.exists() or len(data) < content.stat().st_size:
            content.write_bytes(data)
            before |= facts
        part = folder / f".{os.getpid()}.part"  # two children may find the same
        part.write_text(json.dumps({**before, "times": before["times"] + 1}, indent=2))
        part.replace(note)

    def all(self) -> dict[str, list[dict[str, Any]]]:
        """Return what is known, by reader."""
        found: dict[str, list[dict[str, Any]]] = {}
        for note in sorted(self.folder.glob("*/*.json")):
            found.setdefault(note.parent.name, []).append(json.loads(note.read_text()) | {"file": note.stem})
        return found
