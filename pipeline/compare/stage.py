"""The stage `compare`: runs side by side → the table of the paper, its figures, and everything as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rigl_compress.models.artifacts import write_json, write_text
from rigl_compress.models.settings import plain
from rigl_compress.pipeline.bench.report import CompressionReport
from rigl_compress.pipeline.bench.stage import Listener
from rigl_compress.pipeline.compare.cells import Cell
from rigl_compress.pipeline.compare.comparison import Comparison
from rigl_compress.pipeline.compare.course import Outcome, Watcher, run_all
from rigl_compress.pipeline.compare.figures import RowFigures, all_figures
from rigl_compress.pipeline.compare.latency import latencies
from rigl_compress.pipeline.compare.page import comparison_markdown, comparison_page
from rigl_compress.pipeline.compare.pareto import COSTS, pareto_picture
from rigl_compress.pipeline.compare.pixels import pixel_maps, pixels_picture
from rigl_compress.pipeline.compare.work import Task
from rigl_compress.pipeline.environment import command_line, environment
from rigl_compress.pipeline.lock import locked
from rigl_compress.pipeline.paper.structured import PRINTED

FORMAT = 1


@dataclass(frozen=True)
class Found:
    """What a comparison found."""

    comparison: Comparison
    outcomes: Sequence[Outcome]
    rows: Sequence[RowFigures]
    latencies: Mapping[str, CompressionReport]
    command: str = field(default_factory=command_line)
    environment: Mapping[str, Any] = field(default_factory=environment)

    @property
    def failed(self) -> bool:
        """Whether any run failed."""
        return any(outcome.failure for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values: every run with its result, and what the table makes of it."""
        facts = {"name": self.comparison.name, "about": self.comparison.about.strip(), "seeds": self.comparison.seeds}
        return {
            "format": FORMAT,
            **facts,
            "command": self.command,
            "environment": dict(self.environment),
            "rows": [self._row(row) for row in self.rows],
            "latency": {section: report.to_json() for section, report in self.latencies.items()},
        }

    def _row(self, row: RowFigures) -> dict[str, Any]:
        figures = {each.seed: plain(each) for each in row.runs}
        mine = [outcome for outcome in self.outcomes if outcome.cell.row.label == row.row.label]
        printed = {"printed": asdict(PRINTED[row.row.paper])} if row.row.paper else {}
        return {**plain(row.row), **printed, "runs": [_run(each, figures.get(each.cell.seed)) for each in mine]}


def _run(outcome: Outcome, figures: Mapping[str, Any] | None) -> dict[str, Any]:
    cell = outcome.cell
    facts = {"seed": cell.seed, "folder": str(cell.path), "result": outcome.result, "failure": outcome.failure}
    return {**facts, "figures": figures}


@dataclass(frozen=True)
class Listeners:
    """Who is told how it goes."""

    watcher: Watcher = field(default_factory=Watcher)
    benching: Listener = lambda *_: None


def compare(comparison: Comparison, cells: Sequence[Cell], task: Task, jobs: int, told: Listeners) -> Found:
    """Run what is not done, bench what there is, and give what was found; files are written by `write_found`."""
    out = cells[0].path.parents[1]
    with locked(out):
        outcomes = run_all(cells, task, jobs, told.watcher)
        timed = {} if task.train_only else latencies(outcomes, out, told.benching)
    return Found(comparison, outcomes, all_figures(comparison, outcomes), timed)


def write_found(found: Found, out: Path) -> dict[str, Path]:
    """Write comparison.json, comparison.md, comparison.html and the pictures; gives the pictures by title."""
    with locked(out):
        write_json(out / "comparison.json", found.to_json())
        pictures = dict(_pictures(found, out))
        write_text(out / "comparison.md", comparison_markdown(found, pictures))
        write_text(out / "comparison.html", comparison_page(found, pictures))
    return pictures


def _pictures(found: Found, out: Path) -> Iterator[tuple[str, Path]]:
    maps = pixel_maps(found.outcomes)
    if maps:
        pixels_picture(maps, out / "pixels.png")
        yield "Connections per input pixel", out / "pixels.png"
    for number, section in enumerate(dict.fromkeys(row.row.section for row in found.rows), start=1):
        rows = [row for row in found.rows if row.row.section == section and row.runs]
        for name, cost in COSTS.items() if rows else ():
            title = f"{section or found.comparison.name}: {rows[0].metric.title} against {cost.title}"
            path = out / f"pareto-{name}{f'-{number}' if number > 1 else ''}.png"
            pareto_picture(rows, cost, title, path)
            yield title, path
