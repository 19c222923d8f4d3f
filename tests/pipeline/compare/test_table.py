"""The table, its pictures, and the paper's own figures."""

from pathlib import Path

import pytest

from rigl_compress.exporters.sizes import bitmask_bytes
from rigl_compress.pipeline.bench.report import BenchedModel, Candidate, CompressionReport, Timing
from rigl_compress.pipeline.compare.comparison import Row
from rigl_compress.pipeline.compare.figures import Figures, RowFigures, mean_architecture
from rigl_compress.pipeline.compare.labels import free_place
from rigl_compress.pipeline.compare.latency import START
from rigl_compress.pipeline.compare.pareto import COSTS, front, pareto_picture
from rigl_compress.pipeline.compare.table import failure_lines, start_lines, tables
from rigl_compress.pipeline.paper.structured import PRINTED
from rigl_compress.pipeline.train.metrics import METRICS

ERROR = METRICS["error"]


def figures(seed: int, shift: float = 0.0) -> Figures:
    return Figures(
        seed, f"{400 + seed}-100-{60 + seed}", 0.87, 482.0, 12.6 + shift, 31914.5, 1.4, 1.5 + shift, 450.0, 20_000
    )


def row(label: str, *runs: Figures, section: str = "LeNet-300-100", paper: str = "", failed: str = "") -> RowFigures:
    return RowFigures(Row(label, "x", section=section, paper=paper), runs, ((9, failed),) if failed else (), ERROR)


def timed(label: str, seconds: float) -> Timing:
    return Timing(Candidate(label, "onnxruntime", 1, 1), ((seconds, seconds), (seconds, seconds)))


@pytest.fixture
def latency() -> CompressionReport:
    from rigl_compress.exporters.costs import holdings

    models = tuple(BenchedModel(label, "", 1, holdings([])) for label in (START, "RigL"))
    return CompressionReport(START, models, (timed(START, 4e-5), timed("RigL", 1e-5)))


def test_the_table_of_the_paper(latency: CompressionReport) -> None:
    rows = [
        row("RigL", figures(0, -0.1), figures(2, 0.1), paper="RigL", failed="InputError: no"),
        row("SBP", figures(0), paper="SBP"),
        row("SBP again", figures(0), paper="SBP"),
        row("Lost", failed="Killed"),
        row("Conv", figures(0), section="LeNet-5"),
    ]
    first, second = tables(rows, {"LeNet-300-100": latency}, "name")
    assert first.markdown == "\n".join(
        [
            "| method | final architecture | sparsity | training GFLOPs | inference KFLOPs | bytes, paper's count | "
            "bytes on disk | error %, best (final) | latency | of start network | seeds |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            "| RigL | 401-100-61 | 0.870 | 482.0 (450.0) | 12.6 ± 0.1 | 31,914 | 20,000 | 1.40 ± 0.00 (1.50 ± 0.14) | "
            "10.0 µs (10.0 µs to 10.0 µs) | 0.25x (0.25 to 0.25) | 2 (1 failed) |",
            "| RigL, printed | 408-100-69 | 0.870 | 482.0 | 12.6 | 31,914 |  | 1.44 (1.48) |  |  |  |",
            "| SBP | 400-100-60 | 0.870 | 482.0 (450.0) | 12.6 | 31,914 | 20,000 | 1.40 (1.50) |  |  | 1 |",
            "| SBP, printed | 245-160-55 | 0.000 | 13,521.6 (2,554.8) | 97.1 | 195,100 |  | 1.6 |  |  |  |",
            "| SBP again | 400-100-60 | 0.870 | 482.0 (450.0) | 12.6 | 31,914 | 20,000 | 1.40 (1.50) |  |  | 1 |",
            "| Lost | failed |  |  |  |  |  |  |  |  | 0 (1 failed) |",
        ]
    )
    assert second.title == "LeNet-5"
    assert "latency" not in second.columns
    assert failure_lines(rows) == ["RigL, seed 9: failed, InputError: no", "Lost, seed 9: failed, Killed"]
    assert list(start_lines({"a": latency})) == ["a: the start network takes 40.0 µs (40.0 µs to 40.0 µs)."]


def test_architectures() -> None:
    assert mean_architecture(["408-100-69"]) == "408-100-69"
    assert mean_architecture(["1-2", "1-2-3"]) == "1-2"


@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_figures_follow_from_the_architectures(name: str) -> None:
    """KFLOPs, bytes and the cost of training from scratch are arithmetic; nothing was mistyped."""
    printed = PRINTED[name]
    a, b, c = map(int, printed.architecture.split("-"))
    weights = a * b + b * c + 10 * c
    alive = {"RigL": 6309, "RigL+": 3080}.get(name, weights)
    assert printed.sparsity == pytest.approx(1 - alive / weights, abs=5e-4)
    assert printed.kflops == pytest.approx(2 * alive / 1000, abs=0.05)
    assert printed.bytes == int(bitmask_bytes(alive, b + c + 10, a * b + b * c if alive < weights else 0))
    if printed.found_gflops is not None:
        assert printed.found_gflops == pytest.approx(12e6 * 2 * (3 * weights - a * b) / 1e9, abs=0.05)


def test_a_picture_of_many_points(tmp_path: Path) -> None:
    rows = [row(f"method {place}", figures(0, place / 100), paper="RigL" if place < 2 else "") for place in range(8)]
    pareto_picture(rows, COSTS["bytes"], "t", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_front_is_what_nothing_beats() -> None:
    assert front([(2, 2), (1, 3), (3, 2), (2, 5), (4, 1)]) == [(1, 3), (2, 2), (4, 1)]


def test_labels_go_where_there_is_room() -> None:
    inside, size = (0.0, 0.0, 200.0, 100.0), (40.0, 10.0)
    right = free_place((50, 50), size, [], inside)
    left = free_place((50, 50), size, [right], inside)
    assert left[2] < 50 < right[0]
    at_the_edge = free_place((195, 50), size, [], inside)
    assert at_the_edge[2] <= 200
