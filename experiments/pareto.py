"""Error against cost: a small dot for each trial, a large one for each row's mean, a hollow one for printed figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from rigl_compress.core.artifacts import atomic_path
from rigl_compress.experiments.plot_labels import write_labels
from rigl_compress.experiments.published_flops.structured_pruning import PRINTED, Printed
from rigl_compress.experiments.results import RowResult
from rigl_compress.experiments.trial_figures import Figures
from rigl_compress.pipeline.run_plots import INK, own_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0b6e99", "#c8452e", "#3c8d40", "#8a5aa8", "#c98a00", "#5b6770", "#b03a76", "#1f9e93", "#7a5230", "#3b4cc0")


@dataclass(frozen=True)
class Cost:
    """A cost: its name, and how it is read from figures."""

    title: str
    of: Callable[[Figures | Printed], float | None]

    def known(self, row: RowResult) -> list[tuple[float, float]]:
        """Return cost and final error of the trials whose cost could be counted."""
        return [(cost, each.final) for each in row.figures if (cost := self.of(each)) is not None]


COSTS = {
    "flops": Cost("inference KFLOPs", lambda each: each.kflops),
    "bytes": Cost("bytes, paper's count", lambda each: each.bytes),
}


@own_style()
def pareto_picture(rows: Sequence[RowResult], cost: Cost, title: str, path: Path) -> None:
    """Draw the final error of rows against a cost that is known for all of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.2, 5.4), layout="constrained")
    axes = figure.subplots()
    centres = [_mean_point(cost.known(row)) for row in rows]
    labels = [
        label
        for index, (row, centre) in enumerate(zip(rows, centres, strict=True))
        for label in _draw_row(axes, row, cost, centre, COLOURS[index % len(COLOURS)])
    ]
    best = front(centres)
    axes.step([x for x, _ in best], [y for _, y in best], where="post", color=INK, linewidth=1, alpha=0.45, zorder=1)
    _dress(axes, cost, rows, title)
    steps = pairwise(best)
    lines = [piece for (x0, y0), (x1, y1) in steps for piece in ((x0, y0, x1, y0), (x1, y1, x1, y0))]
    write_labels(figure, axes, list(dict.fromkeys(labels)), lines)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")


def _mean_point(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return mean(x for x, _ in points), mean(y for _, y in points)


def _draw_row(
    axes: "Axes", row: RowResult, cost: Cost, centre: tuple[float, float], colour: str
) -> Iterator[tuple[float, float, str, str]]:
    """Draw the points of a row and yield a label for each of the large ones."""
    known = cost.known(row)
    axes.scatter([x for x, _ in known], [y for _, y in known], s=12, c=colour, alpha=0.45)
    axes.scatter(*centre, s=85, c=colour, edgecolors="white", linewidths=0.9, zorder=3)
    yield *centre, row.row.label, colour
    if row.row.paper:
        printed = PRINTED[row.row.paper]
        point = cost.of(printed) or 0.0, printed.best if printed.final is None else printed.final
        axes.scatter(*point, s=75, facecolors="none", edgecolors=colour, linewidths=1.4, zorder=4)
        yield *point, f"{row.row.paper}, printed", colour


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other point beats in both coordinates, by increasing cost.

    >>> front([(1, 5), (2, 6), (3, 2), (2, 4)])
    [(1, 5), (2, 4), (3, 2)]
    """
    found: list[tuple[float, float]] = []
    for point in sorted(points):
        if not found or point[1] < found[-1][1]:
            found.append(point)
    return found


def _dress(axes: "Axes", cost: Cost, rows: Sequence[RowResult], title: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"{cost.title} (logarithmic)")
    axes.set_ylabel(f"{rows[0].metric.heading}, final")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2, which="major")
    axes.margins(0.1, 0.12)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:g}")
    axes.tick_params(labelsize=8)
    axes.set_title(
        f"{title}\nlarge: means over the seeds · small: single runs · hollow: printed in the paper · line: the best",
        fontsize=9.5,
        color=INK,
        loc="left",
    )
