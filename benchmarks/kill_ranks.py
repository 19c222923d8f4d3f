"""Kill runs of two processes at random moments, resume them with one, two or three, and compare with undisturbed runs.

    python benchmarks/kill_ranks.py [--kills 50] [--seed 0] [--markdown FILE]

SIGKILL goes to rank 0, rank 1 or the launcher, at any moment, also while a checkpoint is written (every third step).
Resumed with two processes, all files of the run are the same as those of the undisturbed run, bit by bit; with one or
three, masks are the same and weights within 1e-5. No process may be left after the kill, and no temporary file in the
end. Linux. Exits with 1 if anything was found.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from reliability import commands
from reliability.ranks import fork_ranks
from reliability.soundness import damaged, leftovers
from safetensors.torch import load_file

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.pipeline.markdown import markdown as markdown_table
from rigl_compress.pipeline.workspace import Run

LARGEST = 1e-5
COLUMNS = ("kills", "as undisturbed", "processes left", "files left", "half files", "failed")
VOLATILE = {"seconds", "command", "environment"}
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
    child, reading = commands.start(arguments)
    sent = False

    def poll(seconds: float) -> None:
        nonlocal sent
        if not sent and seconds >= moment:
            sent = True
            ranks = [int(pid) for pid in Path(f"/proc/{child}/task/{child}/children").read_text().split()]
            number = {"rank 0": 0, "rank 1": 1}.get(target, 9)
            os.kill(ranks[number] if number < len(ranks) else child, signal.SIGKILL)

    return commands.wait(child, reading, poll)


def facts(run: Path) -> dict[str, Any]:
    """Return what is the same in runs of the same number of processes."""
    rows = [_steady(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tensors = {
        f"{path.name} {name}": tensor.numpy().tobytes()
        for path in sorted(run.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    return {"metrics": rows, "result": _steady(json.loads((run / "result.json").read_text())), **tensors}


def _steady(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in VOLATILE}


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
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
def main(kills: int, seed: int, markdown: Path | None) -> None:
    begin, dice, notes = perf_counter(), random.Random(seed), list[str]()
    with tempfile.TemporaryDirectory() as temporary:
        _prepare(Path(temporary))
        rows = _killed(Path(temporary), kills, dice, notes)
    text = _report(rows, notes, perf_counter() - begin)
    click.echo(text)
    if markdown:
        markdown.write_text(text, encoding="utf-8")
    if any(row["kills"] != row["as undisturbed"] or sum(row[what] for what in COLUMNS[2:]) for row in rows.values()):
        raise SystemExit(1)


def _prepare(root: Path) -> None:
    os.environ |= {"RIGL_COMPRESS_STATE": str(root / "state"), "RIGL_COMPRESS_TIMEOUT": "60"}
    sys.path.insert(0, str(Path(__file__).parent))  # the data set is a function of distributed.py
    (root / "recipe.toml").write_text('name = "killed"\n', encoding="utf-8")
    commands.adopt_orphans()
    fork_ranks()
    commands.import_what_is_imported_by(train(root / "warm", 1))


def _killed(root: Path, kills: int, dice: random.Random, notes: list[str]) -> dict[str, Counter[str]]:
    whole, run, rows = root / "whole", root / "run", dict[str, Counter[str]]()
    begin = perf_counter()
    commands.must(*train(whole, 2))
    seconds = perf_counter() - begin
    click.echo(f"{seconds:.1f} s undisturbed", err=True)
    done = 0
    while done < kills:
        shutil.rmtree(run, ignore_errors=True)
        moment, target = dice.uniform(0, seconds), dice.choice(["rank 0", "rank 1", "launcher"])
        ended = killed_at(moment, target, train(run, 2))
        if ended.code == 0:  # it was quicker this time
            seconds *= 0.97
            continue
        done += 1
        count = dice.choice([1, 2, 3])
        row = rows.setdefault(f"{target}, resumed with {count}", Counter())
        half = list(damaged(run)) if run.exists() else []
        after = commands.call(*again(run, count))
        found = ["failed"] if after.code else differences(whole, run, alike=count == 2)
        left = [] if after.code else leftovers(run)
        row.update({"kills": 1, "as undisturbed": int(not found), "processes left": ended.left + after.left})
        row.update({"files left": len(left), "half files": len(half), "failed": int(after.code != 0)})
        if found or left or half or ended.left or after.left:
            notes.append(
                f"{target}, {moment:.2f} s, {count}: {found[:3]} {left} {half} {ended.left} {after.said[-300:]}"
            )
            click.echo(notes[-1], err=True)
    return dict(sorted(rows.items()))


def _report(rows: dict[str, Counter[str]], notes: Sequence[str], seconds: float) -> str:
    here = environment()
    cells = [(name, *(str(row[what]) for what in COLUMNS)) for name, row in rows.items()]
    total = sum(rows.values(), Counter())
    table = markdown_table(("killed", *COLUMNS), [*cells, ("all", *(str(total[what]) for what in COLUMNS))])
    machine = f"{here['cpu']}, {here['cores']} cores, {here['system']}"
    made = f"`{command_line()}`, {here['date']}, {machine}, {seconds:.0f} s"
    return "\n".join([table, "", made, *([""] if notes else []), *(f"- {note}" for note in notes)]) + "\n"


if __name__ == "__main__":
    main()
