"""Kill commands at random moments, call them again, and compare what comes out with an undisturbed run, bit by bit.

    python benchmarks/kills.py [--kills 100] [--grid-kills 20] [--only NAME] [--spawn] [--seed 0] [--markdown FILE]

`train` is killed with SIGKILL and goes on with --resume; `sweep` and `compare`, which here also prunes, exports and
benchmarks, get SIGKILL, SIGTERM or SIGINT, the first process alone, and are called again. No process may be left after
the signal, and no temporary file in the end. Commands are forked from a process that has imported everything, which
leaves out the seconds in which nothing happens to files; --spawn starts the workers of sweep and compare as users do,
each of which imports everything anew.

Linux. Exits with 1 if anything was found.
"""

import json
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from reliability import commands
from reliability.cases import BOX, SMALL, Arguments, Workshop, in_box, warm_up, workshop
from reliability.commands import Ended
from reliability.soundness import damaged, leftovers
from reliability.tables import VOLATILE, steady, tally_report

from rigl_compress.core.artifacts import load_artifact

SAME = ("model", "initial", "topology-start", "topology-end", "pruned")
PLACES = VOLATILE | {"folder", "latency", "data", "recipe"}  # also says where the runs are, and how fast
COLUMNS = ("killed", "identical", "processes left", "files left", "half files", "failed")
ALL = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Target:
    """A command that is killed, with which signals, and what goes on with it."""

    name: str
    start: Arguments
    resume: Arguments
    signals: Sequence[signal.Signals] = ALL

    def again(self, box: Path) -> Arguments:
        """Return what goes on: if nothing was begun, the same call."""
        return self.resume if (box / "run" / "recipe.toml").exists() else self.start


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--kills", default=100, show_default=True, help="Kills of train.")
@click.option("--grid-kills", default=20, show_default=True, help="Kills of sweep, and of compare.")
@click.option("--only", multiple=True, type=click.Choice(["train", "sweep", "compare"]), help="Only this command.")
@click.option("--spawn", is_flag=True, help="Start workers as users do, not by a fork.")
@click.option("--seed", default=0, show_default=True, help="Of the moments.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(kills: int, grid_kills: int, only: tuple[str, ...], spawn: bool, seed: int, markdown: Path | None) -> None:
    begin = perf_counter()
    dice, notes = random.Random(seed), list[str]()
    with workshop() as shop:
        _prepare(shop, spawn)
        rows = {
            target.name: _killed(target, shop.root, number, dice, notes)
            for target, number in zip(_targets(shop), (kills, grid_kills, grid_kills), strict=True)
            if not only or target.name in only
        }
    text = tally_report("command", COLUMNS, rows, notes, perf_counter() - begin)
    click.echo(text)
    if markdown:
        markdown.write_text(text, encoding="utf-8")
    if any(row["killed"] != row["identical"] or sum(row[what] for what in COLUMNS[2:]) for row in rows.values()):
        raise SystemExit(1)


def _prepare(shop: Workshop, spawn: bool) -> None:
    commands.adopt_orphans()
    if not spawn:
        commands.fork_workers()
    commands.import_what_is_imported_by(*warm_up(shop))
    from rigl_compress.experiments import trial_latency as latency
    from rigl_compress.pipeline.bench.timing import TimingPlan

    latency.CONFIG = replace(latency.CONFIG, plan=TimingPlan(openings=1, rounds=2, seconds=0.1))


def _targets(shop: Workshop) -> list[Target]:
    run, recipe = f"{BOX}/run", shop.recipe("killed", *SMALL, "train.epochs=6")
    start: Arguments = ("train", "--recipe", recipe, "-o", run, *shop.data)
    grid: Arguments = ("--recipe", recipe, "--grid", "sparsity.method=rigl,set", "--jobs", 2, *shop.data)
    sweep: Arguments = ("sweep", *grid, "--seeds", 2, "-o", f"{BOX}/sweep")
    compare: Arguments = ("compare", *grid, "-o", f"{BOX}/compare")
    return [
        Target("train", start, ("train", "--resume", run, *shop.data), (signal.SIGKILL,)),
        Target("sweep", sweep, sweep),
        Target("compare", compare, compare),
    ]


def _killed(target: Target, root: Path, kills: int, dice: random.Random, notes: list[str]) -> Counter[str]:
    whole, row = _empty(root / "whole"), Counter[str]()
    begin = perf_counter()
    commands.must(*in_box(whole, target.start))
    seconds = perf_counter() - begin
    wanted = dict(_facts(whole))
    click.echo(f"{target.name}: {seconds:.1f} s undisturbed", err=True)
    while row["killed"] < kills:
        box, moment = _empty(root / "box"), dice.uniform(0, seconds)
        ended = _end_at(moment, dice.choice(target.signals), in_box(box, target.start))
        if ended.code == 0:  # it was quicker this time
            seconds *= 0.97
            continue
        row["killed"] += 1
        half = list(damaged(box))
        after = commands.call(*in_box(box, target.again(box)))
        found = dict(_facts(box)) if not after.code else {}
        differing = sorted(key for key in {*wanted, *found} if wanted.get(key) != found.get(key))
        left = [] if after.code else leftovers(box)
        row["identical"] += not differing
        row["processes left"] += ended.left + after.left
        row["files left"] += len(left)
        row["half files"] += len(half)
        row["failed"] += after.code != 0
        if differing or left or half or ended.left or after.left:
            said = " ".join(after.said.split())[-300:] if after.code else ""
            notes.append(f"{target.name}, {moment:.2f} s, exit {ended.code}: {differing[:3]} {left} {half} {said}")
            click.echo(notes[-1], err=True)
    click.echo(f"{target.name}: {dict(row)}", err=True)
    return row


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def _end_at(moment: float, number: signal.Signals, arguments: Arguments) -> Ended:
    return commands.disturbed(arguments, moment, lambda child: os.kill(child, number))


def _facts(box: Path) -> Iterator[tuple[str, Any]]:
    """Return what must be the same, by file."""
    for path in sorted(box.rglob("*")):
        name = str(path.relative_to(box))
        if path.stem in SAME or path.suffix == ".onnx":
            yield name, path.read_bytes()
        elif path.name == "checkpoint.safetensors":
            yield name, _plain_tensors(load_artifact(path, "checkpoint")[0])
        elif path.suffix in (".json", ".jsonl") and not path.name.startswith(("bench", "stages")):
            yield name, [steady(json.loads(text), PLACES) for text in _texts(path)]
        elif path.is_file():
            yield name, "there"


def _texts(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def _plain_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


if __name__ == "__main__":
    main()
