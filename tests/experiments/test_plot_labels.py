"""Names beside points: none on another, whatever the points are."""

from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rigl_compress.experiments.plot_labels import write_labels


@pytest.mark.parametrize("apart", [0.0, 0.05, 1.0])
def test_names_do_not_stand_on_each_other(apart: float) -> None:
    """Also where all points are one."""
    figure = Figure(figsize=(8.2, 5.4), layout="constrained")
    axes = figure.subplots()
    points = [(10 + apart * (n % 4), 2 + apart * (n // 4), f"method {n}, printed", "#000000") for n in range(10)]
    axes.scatter([x for x, *_ in points], [y for _, y, *_ in points])
    axes.set_xlim(5, 20)
    axes.set_ylim(0, 6)
    write_labels(figure, axes, points)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = {text.get_text(): text.get_window_extent(canvas.get_renderer()) for text in axes.texts}
    assert len(boxes) == 10
    for one, other in combinations(boxes, 2):
        assert not boxes[one].overlaps(boxes[other]), f"{one} stands on {other}"
