"""Kill runs of two processes at random moments, resume them with one, two or three, and compare with undisturbed runs.

    python benchmarks/kill_ranks.py [--kills 50] [--seed 0] [--log FILE] [--markdown FILE]

SIGKILL goes to rank 0, rank 1 or the launcher, at any moment, also while a checkpoint is written (every third step).
Resumed with two processes, all files of the run are the same as those of the undisturbed run, bit by bit; with one or
three, masks are the same and weights within 1e-5. No process may be left after the kill, and no temporary file in the
end. With --log, kills are written to a file as they happen, and a script that was stopped goes on after the last.
Linux. Exits with 1 if anything was found.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from reliability import commands
from reliability.ranks import fork_ranks
from reliability.soundness import damaged, leftovers
from reliability.tables import steady, tally_report
from safetensors.torch import load_file

from rigl_compress.pipeline.workspace import Run

LARGEST = 1e-5
COLUMNS = ("kills", "as undisturbed", "processes left", "files left", "half files", "failed")
SETTINGS = (
    *("model.name=mlp", "model.options.hidden=[20, 16]", "model.options.inputs=12", "data.name=distributed:numbers"),
    *("train.batch=24", "train.epochs=6", "train.checkpoint_steps=3", "learning_rate.peak=0.05"),
    *("sparsity.method=rigl", "sparsity.sparsity=0.7", "sparsity.interval=12"),
)


def train(run: Path, processes: int) -> list[object]:
    recipe = run.parent / "recipe.toml"
    words: list[object] = ["train", "--recipe", recipe, "-o", run, "--device", "cpu", "--processes", processes]
    return words + [word for setting in SETTINGS for word in ("--set", setting)]


def again(run: Path, processes: int) -> list[object]:
    """Return what goes on: the same call if nothing was begun."""
    if not (run / "recipe.toml").exists():
        return train(run, processes)
    return ["train", "--resume", run, "--device", "cpu", "--processes", processes, "--trust-code"]


def killed_at(moment: float, target: str, arguments: Sequence[object]) -> commands.Ended:
    """Start a command and kill one of its processes; a rank that is not there yet leaves it to the launcher."""

    def kill(child: int) -> None:
        ranks = [int(pid) for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
        number = {"rank 0": 0, "rank 1": 1}.get(target, 9)
        os.kill(ranks[number] if number < len(ranks) else child, signal.SIGKILL)

    return commands.disturbed(arguments, moment, kill)


def facts(run: Path) -> dict[str, Any]:
    """Return what is the same in runs of the same number of processes."""
    rows = [steady(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tensors = {
        f"{path.name} {name}": tensor.numpy().tobytes()
        for path in sorted(run.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    return {"metrics": rows, "result": steady(json.loads((run / "result.json").read_text())), **tensors}


def differences(one: Path, other: Path, alike: bool) -> list[str]:
    if alike:
        a, b = facts(one), facts(other)
        return sorted(key for key in {*a, *b} if a.get(key) != b.get(key))
    a, b = Run(one).model(), Run(other).model()
    far = [name for name in a.weights if _distance(a.weights[name], b.weights[name]) > LARGEST]
    return far + ([] if a.topology == b.topology else ["topology"])


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--kills", default=50, show_default=True, help="Number of kills.")
@click.option("--seed", default=0, show_default=True, help="Of the moments.")
@click.option("--log", type=click.Path(path_type=Path), help="Keep each kill in this file, and go on after its last.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(kills: int, seed: int, log: Path | None, markdown: Path | None) -> None:
    begin = perf_counter()
    lines = log.read_text(encoding="utf-8").splitlines() if log and log.exists() else []
    found = [Kill(**json.loads(line)) for line in lines]
    if len(found) < kills:
        with tempfile.TemporaryDirectory() as temporary:
            _prepare(Path(temporary))
            for kill in islice(_kills(Path(temporary), seed, len(found)), kills - len(found)):
                found.append(kill)
                _keep(kill, log)
    text = _report(found, perf_counter() - begin)
    click.echo(text)
    if markdown:
        markdown.write_text(text, encoding="utf-8")
    if any(not kill.good for kill in found):
        raise SystemExit(1)


@dataclass(frozen=True)
class Kill:
    """One kill: of whom, when, with how many processes the run went on, and what came of it."""

    target: str
    moment: float
    processes: int
    different: list[str]
    left: int
    leftovers: list[str]
    half: list[str]
    failed: str

    @property
    def good(self) -> bool:
        """Whether nothing was found."""
        return not (self.different or self.left or self.leftovers or self.half or self.failed)

    @property
    def counts(self) -> Counter[str]:
        """The columns of the table."""
        numbers = (1, int(not self.different), self.left, len(self.leftovers), len(self.half), int(bool(self.failed)))
        return Counter(dict(zip(COLUMNS, numbers, strict=True)))


def _keep(kill: Kill, log: Path | None) -> None:
    if not kill.good:
        click.echo(str(kill), err=True)
    if log:
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(kill)) + "\n")


def _prepare(root: Path) -> None:
    os.environ |= {"RIGL_COMPRESS_STATE": str(root / "state"), "RIGL_COMPRESS_TIMEOUT": "60"}
    sys.path.insert(0, str(Path(__file__).parent))  # the data set is a function of distributed.py
    (root / "recipe.toml").write_text('name = "killed"\n', encoding="utf-8")
    commands.adopt_orphans()
    fork_ranks()
    commands.import_what_is_imported_by(train(root / "warm", 1))


def _kills(root: Path, seed: int, first: int) -> Iterator[Kill]:
    """Kill, go on and compare, again and again; each kill has random numbers of its own."""
    whole, run = root / "whole", root / "run"
    begin = perf_counter()
    commands.must(*train(whole, 2))
    seconds = perf_counter() - begin
    click.echo(f"{seconds:.1f} s undisturbed", err=True)
    for number in count(first):
        dice = random.Random(f"{seed} {number}")
        target, processes = dice.choice(["rank 0", "rank 1", "launcher"]), dice.choice([1, 2, 3])
        while True:
            shutil.rmtree(run, ignore_errors=True)
            moment = dice.uniform(0, seconds)
            ended = killed_at(moment, target, train(run, 2))
            if ended.code:
                break
            seconds *= 0.97  # it was quicker this time
        yield _resumed(whole, run, Kill(target, moment, processes, [], ended.left, [], list(damaged(run)), ""))


def _resumed(whole: Path, run: Path, kill: Kill) -> Kill:
    after = commands.call(*again(run, kill.processes))
    if after.code:
        return replace(kill, left=kill.left + after.left, different=["failed"], failed=after.said[-300:] or "?")
    different = differences(whole, run, alike=kill.processes == 2)
    return replace(kill, left=kill.left + after.left, different=different[:3], leftovers=leftovers(run))


def _report(kills: Sequence[Kill], seconds: float) -> str:
    rows = {f"{kill.target}, resumed with {kill.processes}": Counter[str]() for kill in kills}
    for kill in kills:
        rows[f"{kill.target}, resumed with {kill.processes}"] += kill.counts
    rows = {**dict(sorted(rows.items())), "all": sum(rows.values(), Counter[str]())}
    notes = [str(kill) for kill in kills if not kill.good]
    return tally_report("killed", COLUMNS, rows, notes, seconds)


if __name__ == "__main__":
    main()
