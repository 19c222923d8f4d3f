"""Labels beside points without overlap: each takes the first free position around its point."""

from collections.abc import Iterator, Sequence
from math import cos, hypot, pi, sin
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels
NEAR, FAR, STEP = 9.0, 90.0, 9.0
POINT, THIN = 8.0, 1.5  # half the size of a point, and of a line


def write_labels(
    figure: "Figure", axes: "Axes", labels: Sequence[tuple[float, float, str, str]], lines: Sequence[Box] = ()
) -> None:
    """Draw labels (x, y, text, colour) beside their points and off lines, with a leader line to distant ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()  # computes layout and scales
    renderer = canvas.get_renderer()
    left, bottom, right, top = axes.get_window_extent(renderer).extents
    points = [tuple(axes.transData.transform((x, y))) for x, y, *_ in labels]
    dots = [tuple(place) for drawn in axes.collections for place in axes.transData.transform(drawn.get_offsets())]
    taken = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in (*points, *dots)]
    for x0, y0, x1, y1 in lines:
        (x0, y0), (x1, y1) = axes.transData.transform([(x0, y0), (x1, y1)])
        taken.append((x0 - THIN, y0 - THIN, x1 + THIN, y1 + THIN))
    for (x, y), (_, _, text, colour) in zip(points, labels, strict=True):
        box = free_position((x, y), _size(axes, text, renderer), taken, (left, bottom, right, top))
        taken.append(box)
        _write(axes, text, colour, (x, y), box)


def _size(axes: "Axes", text: str, renderer: Any) -> tuple[float, float]:
    drawn = axes.text(0, 0, text, fontsize=8.5)
    extent = drawn.get_window_extent(renderer)
    drawn.remove()
    return float(extent.width), float(extent.height)


def _write(axes: "Axes", text: str, colour: str, point: tuple[float, float], box: Box) -> None:
    middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
    back = axes.transData.inverted().transform
    x, y = back(middle)
    axes.text(x, y, text, fontsize=8.5, color=colour, ha="center", va="center", zorder=4)
    nearest = (min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3]))
    if hypot(nearest[0] - point[0], nearest[1] - point[1]) > NEAR + 1.5 * STEP:
        ends = back([point, nearest])
        axes.plot(ends[:, 0], ends[:, 1], color=colour, linewidth=0.6, alpha=0.7, zorder=2)


def free_position(point: tuple[float, float], size: tuple[float, float], taken: Sequence[Box], inside: Box) -> Box:
    """Return the nearest box of a size beside a point with the least overlap.

    >>> free_position((50, 50), (20, 10), [], (0, 0, 200, 100))
    (59.0, 45.0, 79.0, 55.0)
    """
    return min(
        _positions(point, size), key=lambda box: sum(_overlap(box, other) for other in taken) + _out(box, inside)
    )


def _positions(point: tuple[float, float], size: tuple[float, float]) -> Iterator[Box]:
    """Yield boxes around a point, nearest first, starting at its right."""
    (x, y), (width, height) = point, size
    for ring in range(int((FAR - NEAR) / STEP)):
        distance = NEAR + ring * STEP
        for turn in (0, 4, 2, 6, 1, 7, 3, 5):
            across, up = cos(turn * pi / 4), sin(turn * pi / 4)
            left = round(x + across * (distance + width / 2) - width / 2, 6)
            bottom = round(y + up * (distance + height / 2) - height / 2, 6)
            yield left, bottom, left + width, bottom + height


def _overlap(one: Box, other: Box) -> float:
    """Return the area that two boxes share.

    >>> _overlap((0, 0, 2, 2), (1, 1, 3, 3)), _overlap((0, 0, 1, 1), (2, 2, 3, 3))
    (1, 0)
    """
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0, width) * max(0, height)


def _out(box: Box, inside: Box) -> float:
    """Return the area of a box outside another."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _overlap(box, inside)
