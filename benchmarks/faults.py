"""A fault at every call of the system that changes a file, for every command that writes.

    python benchmarks/faults.py [--only NAME] [--every N] [--lanes 2] [--markdown FILE]

Each command is first called undisturbed, which counts its calls in the folder that it writes to: open, write, fsync,
rename, unlink, truncate, mkdir. Then it is called once more for each of them and each kind of fault, in a fresh copy of
the folder: the disk is full from that call on (ENOSPC), the call fails (EIO), a write is cut short, or the process is
killed there, in the middle of it if it is a write. After that every file under its final name must be whole, files that
stood there must still stand there, the command must have said what happened in a sentence, and the same call must work,
with nothing temporary left. After a training, --resume and --force must give the undisturbed network bit by bit.

Linux with a C compiler. Exits with 1 if anything was found.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from reliability import commands, injection
from reliability.injection import Injector

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.pipeline.markdown import markdown as markdown_table

FOUND = ("stuck", "torn", "half files", "lost files", "wrong exits", "left over")
NAMES = {"ENOSPC": "disk full", "EIO": "input/output error", "SHORT": "short write", "KILL": "kill"}
Rows = dict[tuple[str, str], dict[str, Any]]


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--only", multiple=True, help="Only commands whose name contains this; can be repeated.")
@click.option("--every", default=1, show_default=True, help="Only every N-th fault, for a quick look.")
@click.option("--lanes", default=2, show_default=True, help="Faults at a time.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Also write the table into this file.")
@click.option("--lane", default=-1, hidden=True)
def main(only: tuple[str, ...], every: int, lanes: int, markdown: Path | None, lane: int) -> None:
    if reason := injection.unavailable_reason():
        raise click.ClickException(f"faults cannot be injected: {reason}")
    if lane >= 0:
        injection.start_again_with_shim()
        _work(only, every, (lane, lanes))
        return
    begin = perf_counter()
    rows = _merged([_lane(number) for number in range(lanes)])
    text = _report(rows, perf_counter() - begin)
    click.echo(text)
    if markdown:
        markdown.write_text(text, encoding="utf-8")
    if any(row["found"] for row in rows.values()):
        raise SystemExit(1)


# A lane: a process of its own that forks for each call


def _lane(number: int) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, *sys.argv, "--lane", str(number)], stdout=subprocess.PIPE, text=True)


def _work(only: tuple[str, ...], every: int, lane: tuple[int, int]) -> None:
    from reliability.cases import all_cases, warm_up, workshop
    from reliability.trial import Trial

    commands.adopt_orphans()
    with workshop() as shop:
        commands.fork_workers()
        commands.import_what_is_imported_by(*warm_up(shop))
        _bench_quickly()
        injector = Injector()
        for case in all_cases(shop, injector):
            if not only or any(part in case.name for part in only):
                click.echo(f"lane {lane[0]}: {case.name}", err=True)
                trial = Trial(case, shop.root, injector)
                click.echo(json.dumps([(case.name, kind.name, vars(tally)) for kind, tally in trial.all(every, lane)]))
    injection.remove_shim()


def _bench_quickly() -> None:
    from rigl_compress.pipeline.bench import footprint

    footprint.TIMES = 1


# The table


def _merged(lanes: "Sequence[subprocess.Popen[str]]") -> Rows:
    rows: Rows = {}
    for lane in lanes:
        output, _ = lane.communicate()
        if lane.returncode:
            rows["a lane failed", "KILL"] = {"calls": 0, "injected": 0, "found": Counter({"stuck": 1}), "notes": []}
        for command, kind, tally in (row for line in output.splitlines() for row in json.loads(line)):
            row = rows.setdefault((command, kind), {"calls": 0, "injected": 0, "found": Counter(), "notes": []})
            row["calls"] = max(row["calls"], tally["calls"])
            row["injected"] += tally["injected"]
            row["found"].update(tally["found"])
            row["notes"] += tally["notes"]
    return rows


def _report(rows: Rows, seconds: float) -> str:
    here = environment()
    lines = [
        (command, NAMES[kind], str(row["calls"]), str(row["injected"]), *(str(row["found"][what]) for what in FOUND))
        for (command, kind), row in rows.items()
    ]
    total = Counter[str]()
    for row in rows.values():
        total.update(row["found"])
    injected = sum(row["injected"] for row in rows.values())
    lines.append(("all", "", "", str(injected), *(str(total[what]) for what in FOUND)))
    table = markdown_table(("command", "fault", "calls", "injected", *FOUND), lines)
    notes = [f"- {command}, {NAMES[kind]}: {note}" for (command, kind), row in rows.items() for note in row["notes"]]
    made = (
        f"`{command_line()}`, {here['date']}, {here['cpu']}, {here['cores']} cores, {here['system']}, {seconds:.0f} s"
    )
    return "\n".join([table, "", made, *(["", *notes] if notes else [])]) + "\n"


if __name__ == "__main__":
    main()
