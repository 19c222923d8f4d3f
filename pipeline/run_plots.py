"""Plots of runs, as PNG. Matplotlib is imported where it is used, since that is slow."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rigl_compress.core.artifacts import atomic_path
from rigl_compress.core.errors import InputError
from rigl_compress.core.wording import percent
from rigl_compress.pipeline.metrics import Metric, metric_of
from rigl_compress.pipeline.run_inspection import own_topologies, pixel_map
from rigl_compress.pipeline.workspace import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, ACCENT = "#222222", "#0b6e99"
FEW = 30  # so many points have a marker each: a line of one point would not be seen


@contextmanager
def own_style() -> Iterator[None]:
    """Use the default style: a matplotlibrc in the working folder could start LaTeX."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False  # names of rows and recipes may hold a $, and are no formulas
        yield


@own_style()
def connections_picture(run: Run, path: Path) -> None:
    """Draw a run into a PNG file."""
    figure = connections_figure(run)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")


def connections_figure(run: Run) -> "Figure":
    """Draw connections per pixel at start and end, as in the paper's figure, and the error over the epochs."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    model, start, end = own_topologies(run)
    found = (pixel_map(model, topology) for topology in (start, end))
    maps = [counts for counts in found if counts is not None]
    if not maps:
        raise InputError(f"{run.path}: the first layer does not read the pixels of an image; there is no map to draw")
    figure = Figure(figsize=(11.4, 3.7), layout=ConstrainedLayoutEngine(w_pad=0.12))
    left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.25])
    largest = int(max(part.max() for part in maps))
    for axes, counts, title in zip((left, middle), maps, ("start", "end"), strict=True):
        image = _map(axes, counts, title, largest)
    # The titles of the maps name the unit: a label here would collide with that of the curve.
    bar = figure.colorbar(image, ax=[left, middle], shrink=0.8, ticks=MaxNLocator(6, integer=True))
    bar.ax.tick_params(labelsize=8)
    _curve(right, list(run.metrics()), metric_of(run.result()))
    figure.suptitle(_title(run.result()), fontsize=11, color=INK)
    return figure


def _map(axes: "Axes", counts: Tensor, title: str, largest: int) -> Any:
    image = axes.imshow(counts.numpy(), cmap="magma", vmin=0, vmax=largest)
    used = int((counts > 0).sum())
    axes.set_title(f"connections per pixel, {title}\n{used} of {counts.numel()} pixels used", fontsize=9, color=INK)
    axes.set_xticks([])
    axes.set_yticks([])
    return image


def logarithmic(axes: "Axes") -> None:
    """Make the vertical axis logarithmic with a few round ticks, whatever its range."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20) if high > 8 * low else MaxNLocator(6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _curve(axes: "Axes", rows: list[dict[str, Any]], metric: Metric) -> None:
    from matplotlib.ticker import MaxNLocator

    points = [(row["epoch"], row[metric.name]) for row in rows if row.get(metric.name) is not None]
    epochs, values = [epoch for epoch, _ in points], [value for _, value in points]
    marker = "o" if len(points) <= FEW else ""
    axes.plot(epochs, values, color=ACCENT, linewidth=1.4, marker=marker, markersize=4)
    axes.set_xlim(min(epochs, default=0) - 0.5, max(epochs, default=0) + 0.5)
    logarithmic(axes)
    axes.set_ylabel(metric.heading, color=ACCENT)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_title(f"{metric.title} over the epochs", fontsize=9, color=INK)


def _title(result: Mapping[str, Any]) -> str:
    metric = metric_of(result)
    final = f"final {metric.title} {metric.show(metric.final_and_best(result)[0])}"
    parts = [f"{result['recipe']}: {percent(result['sparsity'], 1)} sparse", final]
    if pruned := result.get("pruned"):
        parts.append(f"{pruned['architecture']} without dead neurons, {pruned['kflops']:.1f} KFLOPs")
    return " · ".join(parts)
