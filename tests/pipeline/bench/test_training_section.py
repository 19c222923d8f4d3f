"""The part of the page about training: in numbers, and in a real browser."""

import re
from pathlib import Path
from typing import Any

import pytest
from bench_reports import report
from browser import measure, width_of

from rigl_compress.pipeline.bench.bench_page import report_page
from rigl_compress.pipeline.bench.line_charts import FEW, Line, frame_of, line_chart, whole_ticks
from rigl_compress.pipeline.bench.training_course import TrainingCourse
from rigl_compress.pipeline.bench.training_section import MOST_WEIGHTS, training_section


def weight(name: str, reason: str = "") -> dict[str, Any]:
    return {"name": name, "size": 100, "target": 0.9, "sparsity": 0.0 if reason else 0.9, "dense_because": reason}


def course(epochs: int = 5, weights: int = 2, **changes: Any) -> TrainingCourse:
    result = {"method": "rigl", "seed": 0, "seconds": 9.0, "sparsity": 0.9, "final_error": 2.0, "best_error": 1.5}
    numbers = {"train_loss": 0.5, "error": 2.0, "learning_rate": 0.1, "dropped": 900, "grown": 800, "sparsity": 0.9}
    rows = tuple({"epoch": each + 1, **numbers, "seconds": 2.0 * each, **changes} for each in range(epochs))
    account = [*(weight(f"layer{number}.weight") for number in range(weights)), weight("odd.weight", "embedding <b>")]
    return TrainingCourse({**result, "sparsity_by_weight": account}, rows)


def section(found: TrainingCourse) -> str:
    return "".join(training_section(found))


@pytest.mark.parametrize("epochs", [1, 2, 300])
def test_every_curve_is_drawn(epochs: int) -> None:
    page = section(course(epochs))
    titles = re.findall(r"<h3>(.*?)</h3>", page)
    assert titles == ["Training loss", "Error %", "Topology changes", "Learning rate", "Sparsity", "Time"]
    assert page.count("<polyline") == 7  # dropped and grown in one chart
    assert page.count("<circle") == (7 * epochs if epochs <= FEW else 0)
    assert "nan" not in page


def test_what_is_unknown_has_no_curve() -> None:
    page = section(course(train_loss=None, learning_rate=float("inf"), error=1e300))
    assert re.findall(r"<h3>(.*?)</h3>", page) == ["Topology changes", "Sparsity", "Time"]
    assert "<polyline" not in section(course(0))


def test_as_many_grown_as_dropped_are_one_line() -> None:
    page = section(course(grown=900))
    assert page.count("<polyline") == 6
    assert "As many connections grown as dropped" in page


def test_a_fixed_topology_is_said_in_words() -> None:
    assert "the topology did not change" in section(course(dropped=0, grown=0))


def test_runs_of_earlier_versions_show_the_last_update() -> None:
    assert "Connections that the last update dropped." in section(course(dropped=None, grown=None, changed=7))


def test_dense_weights_are_in_sight_in_large_networks_too() -> None:
    page = section(course(weights=MOST_WEIGHTS + 1))
    before, folded = page.split(f"<summary>All {MOST_WEIGHTS + 2} weights</summary>")
    assert "embedding" in before.partition("Target and actual sparsity")[2]
    assert "layer0.weight" in folded
    assert "<b>" not in page


def test_places_on_the_picture() -> None:
    frame = frame_of([Line("loss", ((1, 0.0), (3, 2.0)))])
    assert (frame.x, frame.y[0]) == ((0.5, 3.5), 0.0)
    assert frame.across(1) < frame.across(2) < frame.across(3)
    assert frame.down(2.0) < frame.down(0.0)
    assert frame_of([Line("bits", ((1, -2.0), (2, 1.0)))]).y[0] < -2.0


@pytest.mark.parametrize("epochs", [1, 2, 7, 90, 10_000])
def test_epochs_are_whole_numbers(epochs: int) -> None:
    found = whole_ticks(0.5, epochs + 0.5)
    assert 1 <= len(found) <= 12
    assert all(1 <= tick <= epochs for tick in found)


def test_values_that_are_all_the_same_or_zero() -> None:
    for value in (0.0, 3.0, -1.0, 1e-12, 1e29):
        assert "nan" not in line_chart("same", [Line("same", ((1, value), (2, value)))], str)


@pytest.mark.parametrize(("window", "columns"), [(1280, 3), (500, 1)])
def test_in_a_browser(window: int, columns: int, tmp_path: Path) -> None:
    """Nothing sticks out of the window, and the numbers at the axes are large enough to read."""
    page = tmp_path / "report.html"
    page.write_text(report_page(report(), course(9)), encoding="utf-8")
    assert width_of(page, window, tmp_path / "one") <= window
    numbers = (
        "[new Set([...document.querySelectorAll('.grid')[0].children].map(e=>e.getBoundingClientRect().left)).size,"
        "Math.min(...[...document.querySelectorAll('.grid')[0].querySelectorAll('text')]"
        ".map(e=>e.getBoundingClientRect().height))]"
    )
    found, height = measure(page, window, tmp_path / "two", numbers)
    assert found == columns
    assert height >= 11
