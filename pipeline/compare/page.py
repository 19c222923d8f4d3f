"""A comparison as Markdown, and as one page that needs nothing else."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rigl_compress.pipeline.bench import charts
from rigl_compress.pipeline.bench.page import STYLE
from rigl_compress.pipeline.bench.tables import machine_line
from rigl_compress.pipeline.compare.table import NOTES, failure_lines, start_lines, tables

if TYPE_CHECKING:
    from rigl_compress.pipeline.compare.stage import Found

# Pictures are shown large enough to read the numbers at their axes: one beside the other only where there is room.
WIDE = (
    "main{max-width:1640px}img{width:100%;height:auto;border-radius:6px;background:#fff}"
    ".grid{grid-template-columns:repeat(auto-fit,minmax(min(100%,740px),1fr))}"
)


def comparison_markdown(found: "Found", pictures: Mapping[str, Path]) -> str:
    """Write a comparison in Markdown; pictures are linked by their names."""
    parts = [f"# {found.comparison.name}", " ".join(found.comparison.about.split())]
    for table in tables(found.rows, found.latencies, found.comparison.name):
        parts += [f"## {table.title}", table.markdown]
    parts += ["\n".join(f"- {line}" for line in remarks(found))]
    parts += [f"![{title}]({path.name})" for title, path in pictures.items()]
    parts += [f"`{found.command}`", machine_line(found.environment)]
    return "\n\n".join(part for part in parts if part) + "\n"


def remarks(found: "Found") -> list[str]:
    """Give what is to be known about the tables: what failed, what was measured, how it is counted."""
    printed = any(row.row.paper for row in found.rows)
    timed = [NOTES[3], *start_lines(found.latencies)] if found.latencies else []
    return [*failure_lines(found.rows), *NOTES[:3], *timed, *(NOTES[4:] if printed else ())]


def comparison_page(found: "Found", pictures: Mapping[str, Path]) -> str:
    """Write a comparison as a page with the pictures in it."""
    title = escape(found.comparison.name)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}{WIDE}</style></head><body><main>{''.join(_body(found, pictures))}</main></body></html>\n"
    )


def _body(found: "Found", pictures: Mapping[str, Path]) -> Iterator[str]:
    yield f'<h1>{escape(found.comparison.name)}</h1><p class="soft">{escape(found.comparison.about)}</p>'
    yield from (f'<p class="warn">{escape(line)}</p>' for line in failure_lines(found.rows))
    for table in tables(found.rows, found.latencies, found.comparison.name):
        yield f"<h2>{escape(table.title)}</h2>{charts.table(table)}"
    yield '<h2>Figures</h2><div class="grid">' if pictures else ""
    for title, path in pictures.items():
        source, name = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}", escape(title)
        yield f'<figure><h3>{name}</h3><img alt="{name}" src="{source}"></figure>'
    yield "</div>" if pictures else ""
    yield "<h2>How it was measured</h2>"
    yield from (f'<p class="soft">{escape(line)}</p>' for line in (*remarks(found), machine_line(found.environment)))
    yield f"<p><code>{escape(found.command)}</code></p>"
