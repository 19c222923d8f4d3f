"""One command, a fault at each of its calls, and what is looked at afterwards."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from reliability.cases import Case, in_box
from reliability.commands import Ended, call
from reliability.injection import Injector, Kind
from reliability.soundness import damaged, leftovers
from rigl_compress.core.folder_lock import leftover

KINDS = (Kind.ENOSPC, Kind.EIO, Kind.SHORT, Kind.KILL)


@dataclass
class Tally:
    """What was found for a command and a kind of fault."""

    calls: int = 0
    injected: int = 0
    found: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def note(self, what: str, text: str) -> None:
        """Count something that should not be, and keep a few examples."""
        self.found[what] += 1
        if self.found[what] <= 3:
            self.notes.append(f"{what}: {' '.join(text.split())[:300]}")


@dataclass(frozen=True)
class Trial:
    """A command with its faults."""

    case: Case
    root: Path
    injector: Injector

    def all(self, every: int, lane: tuple[int, int]) -> Iterator[tuple[Kind, Tally]]:
        """Inject every fault of this lane, or every N-th of them."""
        calls = self._counted()
        number = count(-(len(calls) // 2))  # a few faults are not all at the first call
        for kind in KINDS:
            tally = Tally(calls=len(calls))
            for at, letter in enumerate(calls, start=1):
                if kind == Kind.SHORT and letter != "w":
                    continue
                turn, rest = divmod(next(number), every)
                if not rest and turn % lane[1] == lane[0]:
                    self._inject(kind, at, tally)
            yield kind, tally

    def _box(self, name: str, content: Path) -> Path:
        folder = self.root / "boxes" / name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(content, folder)
        return folder

    def _counted(self) -> str:
        box = self._box("counted", self.case.template)
        with self.injector.armed(box, Kind.WATCH):
            ended = call(*in_box(box, self.case.arguments))
        if ended.code:
            raise RuntimeError(f"{self.case.name} fails without a fault: {ended.said}")
        return self.injector.calls

    def _inject(self, kind: Kind, at: int, tally: Tally) -> None:
        box = self._box("box", self.case.template)
        with self.injector.armed(box, kind, at):
            ended = call(*in_box(box, self.case.arguments))
        tally.injected += 1
        name = f"call {at} ({self.injector.calls[at - 1 : at]}), exit {ended.code}"
        for what, text in (*self._look(box, kind, ended), *self._call_again(box)):
            tally.note(what, f"{name}: {text}")
            print(f"{self.case.name}, {kind.name}, {what}: {name}: {text}", file=sys.stderr)

    def _look(self, box: Path, kind: Kind, ended: Ended) -> Iterator[tuple[str, str]]:
        if wrong := self._wrong_exit(kind, ended):
            yield "wrong exits", wrong
        if ended.left:
            yield "left over", f"{ended.left} processes"
        for text in damaged(box):
            yield "half files", text
        if torn := self.case.torn(box):
            yield "torn", torn
        if lost := self._lost(box):
            yield "lost files", ", ".join(lost)

    def _wrong_exit(self, kind: Kind, ended: Ended) -> str:
        """A call that is killed says nothing; one that fails says so in a sentence; one that need not fail succeeds."""
        if kind == Kind.KILL and (ended.code == -9 or ended.code in self.case.codes):
            return ""
        wrong = "Traceback" in ended.said or (ended.code == 2 and not _last(ended.said).startswith("error: "))
        expected = {0} if kind == Kind.SHORT else {0, *self.case.codes}
        return ended.said or "nothing said" if wrong or ended.code not in expected else ""

    def _lost(self, box: Path) -> list[str]:
        """Name files that stood there; the description of a file goes before the file itself is replaced."""
        if self.case.replaces:
            return []
        files = [path for path in self.case.template.rglob("*") if path.is_file() and not leftover(path)]
        before = [path.relative_to(self.case.template) for path in files if path.name != "prune.json"]
        return [str(path) for path in before if not (box / path).exists()]

    def _call_again(self, box: Path) -> Iterator[tuple[str, str]]:
        for number, arguments in enumerate(self.case.next_calls(box)):
            again = self._box(f"again-{number}", box)
            ended = call(*in_box(again, arguments))
            if ended.code or ended.left:
                yield "stuck", f"then exit {ended.code}: {ended.said}"
                continue
            if left := leftovers(again):
                yield "left over", ", ".join(left)
            for text in damaged(again):
                yield "half files", f"then {text}"
            if torn := self.case.torn(again):
                yield "torn", f"then {torn}"
            for name, content in (self.case.wanted or {}).items():
                if (again / "run" / name).read_bytes() != content:
                    yield "torn", f"then {name} differs from that of an undisturbed run"


def _last(said: str) -> str:
    return said.strip().splitlines()[-1] if said.strip() else ""
