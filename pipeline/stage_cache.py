"""A cache of stages: one whose inputs and outputs are unchanged since it last succeeded is not run again."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rigl_compress.core.artifacts import read_json, write_json
from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.exporters.onnx_file import sha256_of

FORMAT = 1


@dataclass(frozen=True)
class Stage:
    """A stage: what it depends on (plain data and files), what it writes, and the function that runs it."""

    name: str
    facts: Callable[[], Mapping[str, Any]]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    run: Callable[[], object]


@dataclass(frozen=True)
class StageOutcome:
    """The outcome of a stage: `seconds` is None if it was up to date."""

    name: str
    seconds: float | None

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.name}: up to date" if self.seconds is None else f"{self.name}: done in {self.seconds:.1f} s"


def run_stages(
    stages: Sequence[Stage], cache_file: Path, forced: str = "", log: Callable[[str], None] = lambda _: None
) -> list[StageOutcome]:
    """Run stages in order; skip those that are up to date, but none from the stage `forced` on."""
    check_stage(forced, stages)
    found, force = [], False
    for stage in stages:
        force = force or stage.name == forced
        done = _run_stage(stage, cache_file, force)
        log(str(done))
        found.append(done)
    return found


def check_stage(name: str, stages: Sequence[Stage]) -> None:
    """Raise for an unknown stage name."""
    names = [stage.name for stage in stages]
    if name and name not in names:
        raise InputError(f"no stage {name!r}: {did_you_mean(name, names)}")


def up_to_date(stage: Stage, cache_file: Path) -> bool:
    """Whether a stage is up to date: its inputs and outputs have the recorded hashes."""
    recorded = _recorded(cache_file).get(stage.name)
    if recorded is None or not all(file.is_file() for file in (*stage.inputs, *stage.outputs)):
        return False
    return bool(recorded == _hashes(stage))


def _run_stage(stage: Stage, cache_file: Path, force: bool) -> StageOutcome:
    if not force and up_to_date(stage, cache_file):
        return StageOutcome(stage.name, None)
    began = perf_counter()
    stage.run()
    seconds = perf_counter() - began
    # Inputs can change while a stage runs (data are downloaded), so hashes are taken afterwards.
    write_json(cache_file, {"format": FORMAT, "stages": {**_recorded(cache_file), stage.name: _hashes(stage)}})
    return StageOutcome(stage.name, seconds)


def _recorded(cache_file: Path) -> dict[str, Any]:
    with suppress(InputError, KeyError, TypeError, ValueError):  # without a readable cache everything is run again
        content = read_json(cache_file)
        return dict(content["stages"]) if content["format"] == FORMAT else {}
    return {}


def _hashes(stage: Stage) -> dict[str, str]:
    facts = json.dumps(dict(stage.facts()), sort_keys=True, ensure_ascii=False, default=str)
    files = {file.name: sha256_of(file) for file in (*stage.inputs, *stage.outputs)}
    return {"facts": hashlib.sha256(facts.encode()).hexdigest(), **files}
