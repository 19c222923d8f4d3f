"""The page: complete, by itself, and well to look at in a real browser."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_reports import benched, report, timing
from browser import browse, measure, width_of

from rigl_compress.pipeline.bench.bench_page import report_page, write_page
from rigl_compress.pipeline.bench.bench_report import Candidate, CompressionReport, Failure
from rigl_compress.pipeline.bench.html_charts import Bar, Point, bar_chart, heat_map, scatter, ticks

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Nesting(HTMLParser):
    """Notes elements that are closed in another order than they were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_elements_are_well_nested() -> None:
    reader = Nesting()
    reader.feed(report_page(report()))
    assert (reader.open, reader.wrong) == ([], [])
    assert {"svg", "table", "figure", "details", "circle", "rect"} <= reader.seen


def test_nothing_is_fetched() -> None:
    """No address, no script, no style sheet, no picture from elsewhere."""
    page = report_page(report())
    assert not re.search(r"https?:|<script|<link|<img|@import|url\(", page)


def test_names_are_names_and_not_markup() -> None:
    evil = "<b>&\"'x"
    page = report_page(report(baseline=evil, models=(benched(evil, 10, 5),), timings=(timing(evil, (1.0, 2.0)),)))
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "A &lt;recipe&gt;." in page


@pytest.mark.parametrize("alive", [0, 100])
def test_models_without_zeros_or_with_nothing_else(alive: int) -> None:
    page = report_page(report(models=(benched("dense", 10, alive), benched("half", 5, alive)), failures=()))
    assert "zeros by layer" in page


def test_one_model_alone() -> None:
    page = report_page(
        report(models=(benched("dense", 1234, 5),), timings=(report().timings[0],), failures=(), profiles={})
    )
    assert "1,234" in page
    assert "Where the time goes" not in page


def test_bars_and_their_intervals() -> None:
    chart = bar_chart("times", [Bar("a", 2, "2 s", 1, 4), Bar("b", 1, "1 s")])
    assert 'style="width:50.00%"' in chart  # of the longest, the interval included
    assert 'style="left:25.00%;width:75.00%"' in chart


def test_a_map_has_a_cell_for_each_count() -> None:
    assert heat_map("map", [[0, 1], [2, 0]]).count("<rect") == 2


def test_points_in_one_place_have_names_below_each_other() -> None:
    chart = scatter("points", [Point("one", 10, 5), Point("two", 10, 5)], ("x", "y"))
    heights = re.findall(r'y="([\d.]+)" text-anchor="\w+" class="name"', chart)
    assert len(set(heights)) == 2


@pytest.mark.parametrize(("low", "high"), [(0.001, 0.002), (3.0, 3.1), (-5, 1e9), (97.49, 97.51)])
def test_ticks_lie_between(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 12
    assert all(low <= tick <= high for tick in found)


@pytest.mark.parametrize("width", [1200, 420])
def test_in_a_browser(width: int, tmp_path: Path) -> None:
    """It is drawn without a word of complaint, and nothing sticks out of the window, be it wide or narrow."""
    page = tmp_path / "report.html"
    write_page(report(), page)
    measured = page.read_text(encoding="utf-8").replace(
        "</body>",
        "<script>document.title=[document.documentElement.scrollWidth,innerWidth,"
        "document.querySelectorAll('figure').length,document.querySelector('.fill').getBoundingClientRect().width,"
        "performance.getEntriesByType('resource').length].join(' ')</script></body>",
    )
    page.write_text(measured, encoding="utf-8")
    done = browse(page, tmp_path / "profile", f"--window-size={width},900", "--dump-dom", "--enable-logging=stderr")
    title = re.search(r"<title>([\d. ]+)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    wide, window, figures, bar, fetched = map(float, title[1].split())
    assert wide <= window
    assert figures == report_page(report()).count("<figure>")
    assert bar > 20
    assert fetched == 0
    assert "CONSOLE" not in done.stderr


def many_columns() -> CompressionReport:
    """A report as large networks give it: every column is used, and names and figures are long."""
    names = ("resnet-50-dense", "resnet-50-sparse", "resnet-50-compact")
    models = tuple(benched(name, 102_400_000, 50, 76.25) for name in names)
    timings = tuple(
        timing(name, (0.1234, 0.1311), (0.1278, 0.1402), backend=backend, batch=batch)
        for name in names
        for backend in ("onnxruntime", "openvino", "sparse", "torch")
        for batch in (1, 64)
    )
    reason = "RuntimeError: the model has an input of a type that this runtime does not know, at node /layer4/conv1"
    failures = (Failure(Candidate(names[1], "onnxruntime", 256, 1), reason),)
    return report(baseline=names[0], models=models, timings=timings, failures=failures, profiles={})


def test_a_window_of_1280_pixels_shows_every_column(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_page(many_columns(), page)
    cut = "[...document.querySelectorAll('.scroll')].map(each=>each.scrollWidth-each.clientWidth)"
    assert measure(page, 1280, tmp_path / "profile", cut) == [0, 0], "pixels of each table that are cut off"


@pytest.mark.parametrize("window", [1280, 500])
def test_many_columns_do_not_widen_the_page(window: int, tmp_path: Path) -> None:
    write_page(many_columns(), tmp_path / "report.html")
    assert width_of(tmp_path / "report.html", window, tmp_path / "profile") <= window


def test_a_picture_of_it(tmp_path: Path) -> None:
    write_page(report(), tmp_path / "report.html")
    browse(
        tmp_path / "report.html", tmp_path / "profile", "--window-size=800,600", f"--screenshot={tmp_path / 'page.png'}"
    )
    picture = (tmp_path / "page.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000  # a blank page is smaller


def everywhere(content: Any, text: str) -> Any:
    """Put a text behind every text."""
    if isinstance(content, dict):
        return {key: everywhere(value, text) for key, value in content.items()}
    if isinstance(content, list):
        return [everywhere(value, text) for value in content]
    return content + text if isinstance(content, str) else content


def test_texts_of_a_foreign_report_are_only_text() -> None:
    """A run folder can bring a bench.json with any labels, names of layers, recipe, command and machine."""
    hostile = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
    content = everywhere(report().to_json(), hostile)
    content["profiles"] = {f"half{hostile}": content["profiles"]["half"]}
    page = report_page(CompressionReport.from_json(content))
    assert page.count("&lt;script&gt;alert(1)") > 20
    found = Nesting()
    found.feed(page)
    assert not found.seen & {"script", "img"}
    assert not any(name.startswith("on") for name in found.attributes)
