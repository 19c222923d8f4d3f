"""The figure of the paper's Appendix B: connections per input pixel, before and after training."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rigl_compress.core.artifacts import atomic_path
from rigl_compress.experiments.results import RowResult
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.run_inspection import own_topologies, pixel_map
from rigl_compress.pipeline.run_plots import INK, own_style
from rigl_compress.pipeline.workspace import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PER_BAND = 5  # maps beside each other
ABSENT = "#d9dde0"  # pixels that were removed before training started


@dataclass(frozen=True)
class Maps:
    """Connections per pixel of a row, [height, width] each, and which pixels the network had at the start."""

    label: str
    start: Tensor
    end: Tensor
    seen: Tensor


def pixel_maps(rows: Sequence[RowResult]) -> list[Maps]:
    """Return the maps of the first section's rows, each of its first trained seed; rows without a change have none."""
    chosen = [row for row in rows if row.good and row.row.section == rows[0].row.section]
    maps = (_maps(row.row.label, row.good[0].run) for row in chosen)
    return [each for each in maps if each is not None]


def _maps(label: str, run: Run) -> Maps | None:
    model, *topologies = own_topologies(run)
    start, end = (pixel_map(model, topology) for topology in topologies)
    if start is None or end is None or torch.equal(start, end):
        return None
    seen = pixel_map(model, Topology.full({layer.name: layer.shape for layer in topologies[0].layers}))
    return Maps(label, start, end, torch.ones_like(start) if seen is None else seen)


@own_style()
def pixels_picture(maps: Sequence[Maps], path: Path) -> None:
    """Draw the maps: start above end for each row, with one colour scale."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns, bands = min(len(maps), PER_BAND), ceil(len(maps) / PER_BAND)
    figure = Figure(figsize=(2.5 * columns + 0.6, 5.6 * bands + 0.4), layout="constrained")
    axes = figure.subplots(2 * bands, columns, squeeze=False)
    for each in axes.flat:
        each.set_axis_off()
    for place, row in enumerate(maps):
        upper, lower = (axes[2 * (place // PER_BAND) + line][place % PER_BAND] for line in (0, 1))
        largest = int(max(row.start.max(), row.end.max()))
        _map(upper, row.start, row.seen, f"{row.label}\nstart", largest)
        image = _map(lower, row.end, row.seen, "end", largest)
        bar = figure.colorbar(image, ax=[upper, lower], location="bottom", shrink=0.8, aspect=22, pad=0.02)
        bar.locator = MaxNLocator(5, integer=True)
        bar.ax.tick_params(labelsize=9)
        bar.outline.set_visible(False)
    cut = any(bool((row.seen == 0).any()) for row in maps)
    below = "\ngrey: removed before training started" if cut else ""
    figure.suptitle(f"Connections per input pixel{below}", fontsize=10, color=INK)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png")


def _map(axes: "Axes", counts: Tensor, seen: Tensor, title: str, largest: int) -> Any:
    from matplotlib import colormaps

    colours = colormaps["magma"].with_extremes(bad=ABSENT)
    shown = torch.where(seen > 0, counts.double(), torch.nan)
    image = axes.imshow(shown.numpy(), cmap=colours, vmin=0, vmax=largest)
    used, visible = int((counts > 0).sum()), int((seen > 0).sum())
    axes.set_title(f"{title}: {used} of {visible} pixels used", fontsize=9, color=INK)
    return image
