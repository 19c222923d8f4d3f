"""Stages with a memory: a stage whose inputs and outputs are as they were when it last succeeded is not run again."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.models.artifacts import read_json, write_json
from rigl_compress.models.errors import InputError, did_you_mean

FORMAT = 1


@dataclass(frozen=True)
class Stage:
    """A step: what it depends on (plain data and files), what it writes, and how it is done."""

    name: str
    facts: Callable[[], Mapping[str, Any]]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    run: Callable[[], object]


@dataclass(frozen=True)
class Done:
    """What became of a stage: `seconds` is None if it was up to date."""

    name: str
    seconds: float | None

    def __str__(self) -> str:
        """Say it in a line."""
        return f"{self.name}: up to date" if self.seconds is None else f"{self.name}: done in {self.seconds:.1f} s"


def run_stages(
    stages: Sequence[Stage], memory: Path, forced: str = "", say: Callable[[str], None] = lambda _: None
) -> list[Done]:
    """Run stages in order; what is up to date is left alone, but nothing from the stage `forced` on."""
    check_stage(forced, stages)
    found, force = [], False
    for stage in stages:
        force = force or stage.name == forced
        done = _run_stage(stage, memory, force)
        say(str(done))
        found.append(done)
    return found


def check_stage(name: str, stages: Sequence[Stage]) -> None:
    """Refuse a name that no stage has."""
    names = [stage.name for stage in stages]
    if name and name not in names:
        raise InputError(f"no stage {name!r}: {did_you_mean(name, names)}")


def up_to_date(stage: Stage, memory: Path) -> bool:
    """Say whether a stage need not be run: inputs and outputs have the hashes that were noted."""
    noted = _noted(memory).get(stage.name)
    if noted is None or not all(file.is_file() for file in (*stage.inputs, *stage.outputs)):
        return False
    return bool(noted == _hashes(stage))


def _run_stage(stage: Stage, memory: Path, force: bool) -> Done:
    if not force and up_to_date(stage, memory):
        return Done(stage.name, None)
    began = perf_counter()
    stage.run()
    seconds = perf_counter() - began
    # What was found on the way (data that had to be fetched, say) belongs to the inputs: hashes are taken now.
    write_json(memory, {"format": FORMAT, "stages": {**_noted(memory), stage.name: _hashes(stage)}})
    return Done(stage.name, seconds)


def _noted(memory: Path) -> dict[str, Any]:
    with suppress(InputError, KeyError, TypeError, ValueError):  # without a memory everything is done anew
        content = read_json(memory)
        return dict(content["stages"]) if content["format"] == FORMAT else {}
    return {}


def _hashes(stage: Stage) -> dict[str, str]:
    facts = json.dumps(dict(stage.facts()), sort_keys=True, ensure_ascii=False, default=str)
    files = {file.name: sha256_of(file) for file in (*stage.inputs, *stage.outputs)}
    return {"facts": hashlib.sha256(facts.encode()).hexdigest(), **files}
