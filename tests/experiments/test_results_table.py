"""The tables of both views, the pictures, and the paper's own figures."""

from pathlib import Path
from typing import Any

import pytest

from rigl_compress.experiments.pareto import COSTS, front, pareto_picture
from rigl_compress.experiments.plot_labels import free_position
from rigl_compress.experiments.published_flops.structured_pruning import PRINTED
from rigl_compress.experiments.results import ExperimentResult, RowResult, TrialResult
from rigl_compress.experiments.results_table import compare_tables, dense_lines, problem_lines, sweep_table
from rigl_compress.experiments.spec import Experiment, Row
from rigl_compress.experiments.trial_figures import Figures, figures_of, mean_architecture
from rigl_compress.models.storage_size import bitmask_bytes
from rigl_compress.pipeline.bench.bench_report import BenchedModel, Candidate, CompressionReport, Timing
from rigl_compress.pipeline.run_pipeline import DENSE
from rigl_compress.pipeline.workspace import Run


def done(seed: int, shift: float = 0.0) -> TrialResult:
    figures = Figures(
        1.4, 1.5 + shift, f"{400 + seed}-100-{60 + seed}", 0.87, 482.0, 12.6 + shift, 31914.5, 450.0, 20_000
    )
    return TrialResult(seed, "", {}, figures=figures)


def row(label: str, *runs: TrialResult, section: str = "LeNet-300-100", paper: str = "", failed: str = "") -> RowResult:
    lost = [TrialResult(9, "", failure=failed)] if failed else []
    return RowResult(Row(label, "x", section=section, paper=paper), (*runs, *lost))


def experiment(*rows: RowResult, **facts: Any) -> ExperimentResult:
    return ExperimentResult(Experiment("name", tuple(each.row for each in rows)), rows, **facts)


def timed(label: str, seconds: float, backend: str = "onnxruntime") -> Timing:
    return Timing(Candidate(label, backend, 1, 1), ((seconds, seconds), (seconds, seconds)))


@pytest.fixture
def latency() -> CompressionReport:
    from rigl_compress.exporters.onnx_costs import stored_costs

    models = tuple(BenchedModel(label, "", 1, stored_costs([])) for label in (DENSE, "RigL"))
    timings = timed(DENSE, 4e-5), timed(DENSE, 8e-5, "sparse"), timed("RigL", 1e-5), timed("RigL", 2e-6, "sparse")
    return CompressionReport(DENSE, models, timings)


def test_the_table_of_the_paper(latency: CompressionReport) -> None:
    rows = [
        row("RigL", done(0, -0.1), done(2, 0.1), paper="RigL", failed="InputError: no"),
        row("SBP", done(0), paper="SBP"),
        row("SBP again", done(0), paper="SBP"),
        row("Lost", failed="Killed"),
        row("Conv", done(0), section="LeNet-5"),
    ]
    first, second = compare_tables(experiment(*rows, latencies={"LeNet-300-100": latency}))
    assert first.markdown == "\n".join(
        [
            "| method | final architecture | sparsity | training GFLOPs | inference KFLOPs | bytes, paper's count | "
            "bytes on disk | error %, best (final) | latency, onnxruntime | onnxruntime, of dense network | "
            "latency, sparse | sparse, of dense network | seeds |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            "| RigL | 401-100-61 | 0.870 | 482.0 (450.0) | 12.6 ± 0.1 | 31,914 | 20,000 | 1.40 ± 0.00 (1.50 ± 0.14) | "
            "10.0 µs (10.0 µs to 10.0 µs) | 0.25x (0.25 to 0.25) | 2.00 µs (2.00 µs to 2.00 µs) | "
            "0.05x (0.05 to 0.05) | 2 (1 failed) |",
            "| RigL, printed | 408-100-69 | 0.870 | 482.0 | 12.6 | 31,914 |  | 1.44 (1.48) |  |  |  |  |  |",
            "| SBP | 400-100-60 | 0.870 | 482.0 (450.0) | 12.6 | 31,914 | 20,000 | 1.40 (1.50) |  |  |  |  | 1 |",
            "| SBP, printed | 245-160-55 | 0.000 | 13,521.6 (2,554.8) | 97.1 | 195,100 |  | 1.6 |  |  |  |  |  |",
            "| SBP again | 400-100-60 | 0.870 | 482.0 (450.0) | 12.6 | 31,914 | 20,000 | 1.40 (1.50) |  |  |  |  | 1 |",
            "| Lost | failed |  |  |  |  |  |  |  |  |  |  | 0 (1 failed) |",
        ]
    )
    assert second.title == "LeNet-5"
    assert not any("latency" in column for column in second.columns)
    assert problem_lines(rows) == ["RigL, seed 9: failed, InputError: no", "Lost, seed 9: failed, Killed"]
    assert list(dense_lines({"a": latency})) == [
        "a: the dense network takes 40.0 µs (40.0 µs to 40.0 µs) in onnxruntime, "
        "80.0 µs (80.0 µs to 80.0 µs) in sparse."
    ]


def test_what_was_not_counted_is_left_empty_and_explained() -> None:
    result = {"final_error": 1.5, "best_error": 1.4, "pruned": None, "not_counted": {"pruned": "RuntimeError: no"}}
    lost = TrialResult(0, "", result, figures=figures_of(Run(Path("nowhere")), result))
    (table,) = compare_tables(experiment(row("a", lost)))
    assert table.columns == ("method", "error %, best (final)", "seeds")
    assert table.rows == (("a", "1.40 (1.50)", "1"),)
    assert problem_lines([row("a", lost)]) == ["a, seed 0: pruned was not counted: RuntimeError: no"]
    assert not COSTS["flops"].known(row("a", lost))


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
    rows = [row(f"method {place}", done(0, place / 100), paper="RigL" if place < 2 else "") for place in range(8)]
    pareto_picture(rows, COSTS["bytes"], "t", tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_the_front_is_what_nothing_beats() -> None:
    assert front([(2, 2), (1, 3), (3, 2), (2, 5), (4, 1)]) == [(1, 3), (2, 2), (4, 1)]


def test_labels_go_where_there_is_room() -> None:
    inside, size = (0.0, 0.0, 200.0, 100.0), (40.0, 10.0)
    right = free_position((50, 50), size, [], inside)
    left = free_position((50, 50), size, [right], inside)
    assert left[2] < 50 < right[0]
    at_the_edge = free_position((195, 50), size, [], inside)
    assert at_the_edge[2] <= 200


# The table of a sweep


def trained(seed: int, error: float | None) -> TrialResult:
    if error is None:
        return TrialResult(seed, "", failure="InputError: no")
    pruned = {"architecture": f"{error}-2-3", "kflops": error, "bitmask_bytes": 1000 * error}
    gflops = {"exact-schedule": 2 * error, "appendix-h": 3 * error}
    return counted(
        seed,
        {"final_error": error, "best_error": error - 0.5, "sparsity": 0.9, "pruned": pruned, "training_gflops": gflops},
    )


def counted(seed: int, result: dict[str, Any]) -> TrialResult:
    return TrialResult(seed, "", result, figures=figures_of(Run(Path("nowhere")), result))


def setting(label: str, *errors: float | None) -> RowResult:
    return row(label, *(trained(seed, error) for seed, error in enumerate(errors)))


def test_mean_and_deviation_over_the_seeds() -> None:
    found = experiment(setting("m=a", 1.0, 3.0), setting("m=b", 4.0))
    lines = sweep_table(found, "exact-schedule").rows
    assert lines[0][:4] == ("m=a", "2", "2.00 ± 1.41", "1.50 ± 1.41")
    assert lines[0][6:] == ("2.0 ± 1.4", "2,000 ± 1,414", "4.0 ± 2.8")
    assert lines[1][:4] == ("m=b", "1", "4.00", "3.50")
    assert sweep_table(experiment(setting("m=b", 4.0)), "appendix-h").rows[0][-1] == "12.0"


def test_failures_are_in_the_table() -> None:
    table = sweep_table(experiment(setting("m=a", 1.0, None), setting("m=b", None)), "exact-schedule")
    assert table.rows[0][:3] == ("m=a", "1 (1 failed)", "1.00")
    assert table.rows[1][:3] == ("m=b", "failed", "InputError: no")
    assert all(len(line) == len(table.columns) == 9 for line in table.rows)


def test_markdown() -> None:
    table = sweep_table(experiment(setting("m=a", 1.0), setting("m=b", None)), "exact-schedule")
    lines = table.markdown.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("| settings | seeds | error %, final | error %, best |")
    assert {line.count("|") for line in lines} == {len(table.columns) + 1}


def test_the_metric_of_the_task_is_in_the_table() -> None:
    facts = {"metric": "bpc", "sparsity": 0.9, "training_gflops": {"exact-schedule": 1.0}}
    texts = row("m=a", *(counted(s, {**facts, "final_bpc": 2 + s, "best_bpc": 1.5 + s}) for s in (0, 1)))
    table = sweep_table(experiment(texts), "exact-schedule")
    assert table.columns[2:4] == ("bits per character, final", "bits per character, best")
    assert table.rows[0][2:4] == ("2.500 ± 0.707", "2.000 ± 0.707")
    both = sweep_table(experiment(texts, setting("m=b", 1.0), setting("m=c", None)), "exact-schedule")
    assert both.columns[2] == "bits per character or error %, final"
