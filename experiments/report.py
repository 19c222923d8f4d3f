"""The report of `compare`: Markdown, one page that needs no other file, and the pictures."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from rigl_compress.core.artifacts import write_text
from rigl_compress.core.folder_lock import locked
from rigl_compress.experiments.pareto import COSTS, pareto_picture
from rigl_compress.experiments.pixel_maps import pixel_maps, pixels_picture
from rigl_compress.experiments.results import ExperimentResult, by_section
from rigl_compress.experiments.results_table import compare_tables, problem_lines, remarks
from rigl_compress.pipeline.bench import html_charts as charts
from rigl_compress.pipeline.bench.bench_page import STYLE
from rigl_compress.pipeline.bench.bench_tables import machine_line

# Pictures are large enough to read the numbers at their axes: beside each other only where there is room.
WIDE = (
    "main{max-width:1640px}th,td{padding:7px 6px}"
    "img{display:block;max-width:100%;height:auto;margin:0 auto;border-radius:6px;background:#fff}"
    ".grid{grid-template-columns:repeat(auto-fit,minmax(min(100%,740px),1fr))}"
)


def write_report(result: ExperimentResult, out: Path) -> dict[str, Path]:
    """Write comparison.md, comparison.html and the pictures, and return the pictures by title."""
    with locked(out):
        pictures = dict(_pictures(result, out))
        write_text(out / "comparison.md", report_markdown(result, pictures))
        write_text(out / "comparison.html", report_page(result, pictures))
    return pictures


def _pictures(result: ExperimentResult, out: Path) -> Iterator[tuple[str, Path]]:
    maps = pixel_maps(result.rows)
    if maps:
        pixels_picture(maps, out / "pixels.png")
        yield "Connections per input pixel", out / "pixels.png"
    for number, (section, rows) in enumerate(by_section(result.rows).items(), start=1):
        for name, cost in COSTS.items():
            drawn = [row for row in rows if cost.known(row)]
            if drawn:
                title = f"{section or result.experiment.name}: {drawn[0].metric.title} against {cost.title}"
                path = out / f"pareto-{name}{f'-{number}' if number > 1 else ''}.png"
                pareto_picture(drawn, cost, title, path)
                yield title, path


def report_markdown(result: ExperimentResult, pictures: Mapping[str, Path]) -> str:
    """Write the report in Markdown; pictures are linked by their file names."""
    parts = [f"# {result.experiment.name}", " ".join(result.experiment.about.split())]
    for table in compare_tables(result):
        parts += [f"## {table.title}", table.markdown]
    parts += ["\n".join(f"- {line}" for line in remarks(result))]
    parts += [f"![{title}]({path.name})" for title, path in pictures.items()]
    parts += [f"`{result.command}`", machine_line(result.environment)]
    return "\n\n".join(part for part in parts if part) + "\n"


def report_page(result: ExperimentResult, pictures: Mapping[str, Path]) -> str:
    """Write the report as an HTML page that contains the pictures."""
    title = escape(result.experiment.name)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}{WIDE}</style></head><body><main>{''.join(_body(result, pictures))}</main></body></html>\n"
    )


def _body(result: ExperimentResult, pictures: Mapping[str, Path]) -> Iterator[str]:
    yield f'<h1>{escape(result.experiment.name)}</h1><p class="soft">{escape(result.experiment.about)}</p>'
    yield from (f'<p class="warn">{escape(line)}</p>' for line in problem_lines(result.rows))
    for table in compare_tables(result):
        yield f"<h2>{escape(table.title)}</h2>{charts.table(table)}"
    yield '<h2>Figures</h2><div class="grid">' if pictures else ""
    for title, path in pictures.items():
        source, name = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}", escape(title)
        yield f'<figure><h3>{name}</h3><img alt="{name}" src="{source}"></figure>'
    yield "</div>" if pictures else ""
    yield "<h2>How it was measured</h2>"
    yield from (f'<p class="soft">{escape(line)}</p>' for line in (*remarks(result), machine_line(result.environment)))
    yield f"<p><code>{escape(result.command)}</code></p>"
