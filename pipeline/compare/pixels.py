"""The paper's figure of Appendix B: how many connections begin at each pixel, before and after training."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rigl_compress.models.artifacts import atomic_path
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.compare.course import Outcome
from rigl_compress.pipeline.inspect import pixel_map
from rigl_compress.pipeline.pictures import INK, own_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 5  # maps beside each other
ABSENT = "#d9dde0"  # pixels that the network cannot see: cut away before training began


@dataclass(frozen=True)
class Maps:
    """Connections per pixel of a row, [height, width] each, and the pixels that it could see when it began."""

    label: str
    begin: Tensor
    end: Tensor
    seen: Tensor


def pixel_maps(outcomes: Sequence[Outcome]) -> list[Maps]:
    """Give the maps of the first section's rows, of the first seed of each; rows whose maps do not change have none."""
    good = [outcome.cell for outcome in outcomes if not outcome.failure]
    cells = {cell.row.label: cell for cell in sorted(good, key=lambda cell: -cell.seed)}
    chosen = [cell for cell in cells.values() if cell.row.section == outcomes[0].cell.row.section]
    found = []
    for cell in sorted(chosen, key=lambda cell: [outcome.cell.row.label for outcome in outcomes].index(cell.row.label)):
        model, topologies = cell.run.model(), [cell.run.topology(moment) for moment in ("begin", "end")]
        begin, end = (pixel_map(model, topology) for topology in topologies)
        if begin is not None and end is not None and not torch.equal(begin, end):
            seen = pixel_map(model, Topology.full({layer.name: layer.shape for layer in topologies[0].layers}))
            found.append(Maps(cell.row.label, begin, end, torch.ones_like(begin) if seen is None else seen))
    return found


@own_style()
def pixels_picture(maps: Sequence[Maps], path: Path) -> None:
    """Draw the maps: begin above end for each row, in the same colours."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns, bands = min(len(maps), MOST), ceil(len(maps) / MOST)
    figure = Figure(figsize=(2.5 * columns + 0.6, 5.6 * bands + 0.4), layout="constrained")
    axes = figure.subplots(2 * bands, columns, squeeze=False)
    for each in axes.flat:
        each.set_axis_off()
    for place, row in enumerate(maps):
        upper, lower = (axes[2 * (place // MOST) + line][place % MOST] for line in (0, 1))
        largest = int(max(row.begin.max(), row.end.max()))
        _map(upper, row.begin, row.seen, f"{row.label}\nbegin", largest)
        image = _map(lower, row.end, row.seen, "end", largest)
        bar = figure.colorbar(image, ax=[upper, lower], location="bottom", shrink=0.8, aspect=22, pad=0.02)
        bar.locator = MaxNLocator(5, integer=True)
        bar.ax.tick_params(labelsize=9)
        bar.outline.set_visible(False)
    cut = any(bool((row.seen == 0).any()) for row in maps)
    below = "\ngrey: cut away before training began" if cut else ""
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
