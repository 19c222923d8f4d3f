"""Reports: derived figures, JSON and back, tables, conditions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_reports import benched, report, timing
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.core.artifacts import write_json
from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.bench.bench_page import report_page
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_tables import machine, model_table, profile_table, report_markdown, timing_table
from rigl_compress.pipeline.bench.conditions import check_conditions, parse_condition

seconds = st.floats(1e-7, 1e3)
samples = st.lists(st.lists(seconds, min_size=2, max_size=4), min_size=2, max_size=3)


def test_ratios() -> None:
    found = report()
    dense, half = found.timings
    ratio = found.ratio(half)
    assert ratio is not None
    assert ratio.value == pytest.approx(0.5)
    assert found.ratio(dense).value == 1.0  # type: ignore[union-attr]
    assert half.throughput == pytest.approx(1000)


def test_candidates_of_other_batches_are_not_compared() -> None:
    found = report(timings=(timing("dense", (1.0,), (1.0,)), timing("half", (1.0,), (1.0,), batch=8)))
    assert found.ratio(found.timings[1]) is None


def test_noise_is_warned_of() -> None:
    noisy = timing("half", (0.001, 0.004), (0.006, 0.001), (0.001, 0.001))
    found = report(timings=(report().timings[0], noisy))
    assert "too noisy to tell half (onnxruntime, batch 1, 1 thread) from dense" in found.warnings[0]
    assert report().warnings == ()


def pruned(seconds: float, trained: float, backend: str = "onnxruntime") -> CompressionReport:
    """A network before and after it was pruned, with a baseline that is faster than both."""
    models = (benched("dense", 100, 9), replace(benched("small", 50, 5), trained="whole"), benched("whole", 100, 10))
    whole = replace(models[2], added=True)
    every = {"dense": 0.5, "small": seconds, "whole": trained}
    timings = [timing(name, (each, each), (each, each * 1.001)) for name, each in every.items()]
    other = timing("small", (9.0, 9.0), (9.0, 9.0), backend=backend) if backend != "onnxruntime" else timings[1]
    return report(models=(*models[:2], whole), timings=(timings[0], timings[2], other), failures=(), profiles={})


def test_a_pruned_network_that_is_slower_is_warned_of() -> None:
    found = pruned(1.2, 1.0)
    (warning,) = found.warnings
    assert "small (onnxruntime, batch 1, 1 thread) was pruned and is slower than whole" in warning
    assert "1.20x" in warning
    assert "--network trained" in warning
    assert timing_table(found).rows[2][-1] == "2.40x slower; 1.20x slower than whole, unpruned"
    assert warning in report_markdown(found)
    assert warning in report_page(found)
    content = found.to_json()
    assert content["warnings"] == [warning]
    assert content["timings"][2]["derived"]["slower_than_trained"] is True
    assert content["timings"][2]["derived"]["of_trained"] == pytest.approx(1.2)
    assert CompressionReport.from_json(json.loads(json.dumps(content))) == found


@pytest.mark.parametrize("found", [pruned(1.0, 1.2), pruned(1.0, 1.0), pruned(1.2, 1.0, "torch")])
def test_a_pruned_network_that_is_not_slower_is_not_warned_of(found: CompressionReport) -> None:
    """Neither is one that was measured in another runtime."""
    assert found.warnings == ()
    assert "unpruned" not in timing_table(found).rows[2][-1]
    assert not found.to_json()["timings"][2]["derived"].get("slower_than_trained")


def test_conditions_are_for_what_people_named() -> None:
    verdicts = check_conditions((parse_condition("size<=60"), parse_condition("whole:size<=60")), pruned(1.0, 1.0))
    assert [(each.subject, each.holds) for each in verdicts] == [("dense", False), ("small", True), ("whole", False)]


def test_json_and_back(tmp_path: Path) -> None:
    write_json(tmp_path / "bench.json", report().to_json())
    assert CompressionReport.load(tmp_path / "bench.json") == report()


@given(samples, st.integers(1, 10**9), st.integers(0, 100), st.none() | st.floats(0, 100))
def test_any_report_survives_json(times: list[list[float]], size: int, alive: int, accuracy: float | None) -> None:
    made = report(
        models=(benched("dense", size, alive, accuracy),),
        timings=(timing("dense", *map(tuple, times)),),
        failures=(),
        profiles={},
    )
    assert CompressionReport.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_json_names_its_format() -> None:
    content = report().to_json()
    assert content["format"] == 1
    assert content["timings"][1]["derived"]["ratio"] == pytest.approx(0.5)
    assert content["timings"][1]["derived"]["differs"] is True
    with pytest.raises(InputError, match="format 2, this version reads 1"):
        CompressionReport.from_json({**content, "format": 2})


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("models", 0, "bytes"), 10**31, "a number of 103 bits"),
        (("models", 0, "bytes"), -1, "figure -1"),
        (("models", 0, "costs", "parameters"), 10**400, "a number of 1329 bits"),
        (("models", 0, "costs", "nodes", 0, "dense_flops"), float("inf"), "figure inf"),
        (("models", 0, "pixels"), [[1, 2], [3]], "not a rectangle"),
        (("profiles", "half", 0, "seconds"), float("nan"), "the profile of 'half'"),
        (("timings", 0, "samples"), [], "not all seconds above 0"),
        (("timings", 0, "samples", 0, 0), 0.0, "not all seconds above 0"),
        (("timings", 0, "samples", 0, 0), 1e308, "not all seconds above 0"),
        (("timings", 1, "samples"), [[0.001]], "not timed as often as the baseline"),
        (("timings", 1, "samples", 0), [], "not timed as often"),
        (("timings", 1, "candidate", "label"), "other", "none of its models"),
        (("timings", 0, "candidate", "batch"), 0, "batch 0 on 1 threads"),
    ],
)
def test_figures_that_nobody_measured_are_refused(path: tuple[str | int, ...], value: object, words: str) -> None:
    content: Any = json.loads(json.dumps(report().to_json()))
    *way, last = path
    place = content
    for key in way:
        place = place[key]
    place[last] = value
    with pytest.raises(InputError, match=words):
        CompressionReport.from_json(content)


def test_the_baseline_must_be_there() -> None:
    with pytest.raises(InputError, match="did you mean 'dense'"):
        report(baseline="dnese")


def test_tables() -> None:
    models = model_table(report())
    assert models.rows[1] == (
        *("half", "500", "0.500x", "252", "110", "60", "50.0%", "100", "200", "250 ms", "4.0 MB", "98.25 %"),
    )
    times = timing_table(report())
    assert times.rows[0][-2:] == ("1.00x", "baseline")
    assert times.rows[1][-1] == "2.00x faster"
    assert times.rows[2][4:] == ("failed", "", "", "", "", "it would not")
    profile = profile_table("half", report().profiles["half"])
    assert profile.rows[0] == ("fc.weight", "Gemm", "600 µs", "75.0%", "100", "200", "█" * 20)
    assert profile.rows[1][3] == "25.0%"


def test_columns_that_nobody_fills_are_left_out() -> None:
    found = report(models=(benched("dense", 10, 5),))
    assert "accuracy" not in model_table(found).columns


def test_markdown() -> None:
    text = report_markdown(report())
    assert "| half | 500 | 0.500x |" in text
    assert "`rigl-compress bench dense.onnx half.onnx odd.onnx`" in text
    assert "some processor" in text
    assert "counted as zero FLOPs: 2 Relu" in text


def test_the_machine_in_a_line() -> None:
    assert machine(report()).startswith("some processor, 2 cores, governor None, load 0.5")


# Conditions


def holds(*texts: str) -> list[bool]:
    return [verdict.holds for verdict in check_conditions(tuple(map(parse_condition, texts)), report())]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("half:latency<=0.9x", [True]),
        ("half:latency<=0.4x", [False]),
        ("latency<=0.9x", [True, False]),  # odd was not timed, and what was not timed does not hold
        ("dense:latency<=2ms", [True]),
        ("half:p99 < 1500 us", [False]),
        ("half:throughput>=1.5x", [True]),
        ("size<=0.5x", [True, True]),
        ("size<=0.45x", [False, True]),
        ("size<=1kB", [True, True, True]),
        ("half:flops<=100", [True]),
        ("half:flops<100", [False]),
        ("dense-flops<=1x", [True, True]),
        ("odd:sparsity>=90%", [True]),
        ("half:accuracy>=98.2", [True]),
        ("odd:accuracy>=1", [False]),
        ("half:memory<=4MB", [True]),
        ("half:load<200ms", [False]),
        ("half:bitmask<=252.5", [True]),
        ("nonzeros<=1x", [True, True]),
        ("parameters<1x", [False, False]),
    ],
)
def test_conditions(text: str, expected: list[bool]) -> None:
    assert holds(text) == expected


def test_a_comparison_with_nobody_does_not_hold() -> None:
    alone = report(models=(benched("dense", 10, 5),), timings=(timing("dense", (1.0,), (1.0,)),), failures=())
    (verdict,) = check_conditions((parse_condition("latency<=0.9x"),), alone)
    assert not verdict.holds
    assert "NOT met: latency<=0.9x" in str(verdict)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("latency", "not of the form"),
        ("latency=0.9x", "not of the form"),
        ("latancy<=0.9x", "did you mean 'latency'"),
        ("size<=3 bananas", "unknown unit 'bananas'"),
        ("size<=1.2.3", "no number '1.2.3'"),
    ],
)
def test_conditions_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_condition(text)


def test_a_condition_on_an_unknown_model() -> None:
    with pytest.raises(InputError, match="did you mean 'half'"):
        holds("hafl:size<=1x")


def test_weights_that_stay_dense_are_named_in_every_report() -> None:
    named = replace(benched("dense", 1000, 100), facts={"left_dense": {"embedding.weight": 8192}})
    found = report(models=(named, benched("half", 500, 50), benched("odd", 400, 10)))
    line = "dense: left dense by sparse training: embedding.weight (8,192 weights)"
    assert line in report_markdown(found)
    assert line in report_page(found)
