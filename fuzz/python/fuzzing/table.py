"""The result as a table in Markdown."""

import datetime
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    "reader",
    "inputs",
    "edges: seeds",
    "edges: end",
    "findings",
    "shared with ONNX Runtime",
    "slowest, computing",
    "memory",
)


def report(counts: Mapping[str, Mapping[str, Any]], findings: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table with what one needs to make it again."""
    rows = [_row(name, counts[name], findings.get(name, ())) for name in counts]
    rows.append(_sum(rows))
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_circumstances()}\n{''.join(_details(findings))}"


def _shared(finding: Mapping[str, Any]) -> bool:
    return str(finding["kind"]).startswith("shared-")


def _row(name: str, count: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    shared = sum(map(_shared, findings))
    edges = [f"{count[key]:,}" if count[key] else "" for key in ("first_edges", "edges")]
    figures = (
        str(len(findings) - shared),
        str(shared),
        f"{count['slowest']:.2f} s",
        f"{count['peak_kib'] / 1024:,.0f} MiB",
    )
    return (name, f"{count['inputs']:,}", *edges, *figures)


def _sum(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    def add(place: int) -> str:
        return f"{sum(int(row[place].replace(',', '') or 0) for row in rows):,}"

    slowest = max((float(row[6].split()[0]) for row in rows), default=0.0)
    memory = max((int(row[7].split()[0].replace(",", "")) for row in rows), default=0)
    return ("all", add(1), "", "", add(4), add(5), f"{slowest:.2f} s", f"{memory:,} MiB")


def _details(findings: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    return [
        f"\n- {reader}: {each['kind']} at {each['where']} ({each['step']}), {each['times']} times, {each['file']}.bin"
        for reader, found in findings.items()
        for each in found
        if not _shared(each)
    ]


def _circumstances() -> str:
    command = " ".join(["python", *map(_short, sys.argv)])
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"`{command}`, {_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {today}"


def _short(argument: str) -> str:
    path = Path(argument)
    return f"fuzz/python/{path.name}" if path.suffix == ".py" else argument


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
