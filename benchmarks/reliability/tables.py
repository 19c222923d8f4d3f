"""What `kills.py` and `kill_ranks.py` compare and print."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

from rigl_compress.core.provenance import command_line, environment
from rigl_compress.pipeline.markdown import markdown

VOLATILE = frozenset({"seconds", "command", "environment"})  # differ from run to run


def steady(content: Any, volatile: Set[str] = VOLATILE) -> Any:
    """Return JSON values without those that differ from run to run."""
    if isinstance(content, dict):
        return {key: steady(value, volatile) for key, value in content.items() if key not in volatile}
    return [steady(each, volatile) for each in content] if isinstance(content, list) else content


def tally_report(
    title: str, columns: Sequence[str], rows: Mapping[str, Counter[str]], notes: Sequence[str], seconds: float
) -> str:
    """Return a Markdown table of counts, the command that printed it, and what was found."""
    here = environment()
    table = markdown((title, *columns), [(name, *(str(row[what]) for what in columns)) for name, row in rows.items()])
    machine = f"{here['cpu']}, {here['cores']} cores, {here['system']}"
    made = f"`{command_line()}`, {here['date']}, {machine}, {seconds:.0f} s"
    return "\n".join([table, "", made, *([""] if notes else []), *(f"- {note}" for note in notes)]) + "\n"
