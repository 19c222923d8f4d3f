"""The stage: models side by side, whatever becomes of one of them."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_graphs import model, node, weight
from tiny import Trainer, untouched

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_sources import opened_sources
from rigl_compress.pipeline.bench.footprint import footprints
from rigl_compress.pipeline.bench.model_inputs import InputSpec
from rigl_compress.pipeline.bench.operator_profile import profile
from rigl_compress.pipeline.bench.stage import BenchConfig, bench
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.pipeline.prune.stage import prune_run

QUICK = TimingPlan(openings=2, rounds=3, warmup=1)


def run_bench(*paths: Path, **settings: object) -> CompressionReport:
    config = BenchConfig(**{"plan": QUICK, "footprint": False, **settings})  # type: ignore[arg-type]
    with opened_sources(list(paths)) as sources:
        return bench(sources, config)


def save(path: Path, made: onnx.ModelProto) -> Path:
    onnx.save(made, path)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return save(
        tmp_path / "small.onnx", model([node("MatMul", "x w", "y")], {"x": ("n", 4)}, {"w": weight(4, 2, zeros=6)})
    )


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return save(tmp_path / "large.onnx", model([node("MatMul", "x w", "y")], {"x": ("n", 4)}, {"w": weight(4, 64)}))


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file that passes every check and fails when it runs: the index is out of range."""
    nodes = [node("Gather", "w i", "g"), node("MatMul", "x g", "y")]
    return save(tmp_path / "broken.onnx", model(nodes, {"x": ("n", 4)}, {"w": weight(2, 4, 2), "i": np.array(7)}))


def test_side_by_side(small: Path, large: Path) -> None:
    found = run_bench(large, small, batches=(1, 8), threads=(1, 2))
    assert (found.baseline, [each.label for each in found.models]) == ("large", ["large", "small"])
    assert len(found.timings) == 8
    assert {timing.candidate.cell for timing in found.timings} == {(1, 1), (1, 2), (8, 1), (8, 2)}
    assert all(len(timing.samples) == 2 and len(timing.samples[0]) == 3 for timing in found.timings)
    assert found.model("small").costs.sparse_flops == 2 * 2
    assert found.model("small").bytes == small.stat().st_size
    assert {"cpu", "cpu_flags", "cores", "governor", "load", "versions", "date"} <= found.environment.keys()


def test_another_baseline(small: Path, large: Path) -> None:
    assert run_bench(large, small, baseline="small").baseline == "small"
    assert run_bench(large, small, baseline=str(small)).baseline == "small"
    with pytest.raises(InputError, match="did you mean 'small'"):
        run_bench(large, small, baseline="smal")


def test_one_that_crashes_does_not_lose_the_others(small: Path, broken: Path) -> None:
    found = run_bench(small, broken, profile=True, footprint=True)
    assert [timing.candidate.label for timing in found.timings] == ["small"]
    assert [failure.candidate.label for failure in found.failures] == ["broken"]
    assert "out of" in found.failures[0].reason
    assert found.model("broken").costs.dense_flops == 0
    assert found.model("broken").footprint is None
    assert found.model("small").footprint is not None
    assert list(found.profiles) == ["small"]


def test_nothing_at_all_is_an_error(broken: Path) -> None:
    with pytest.raises(InputError, match=r"nothing could be timed .broken: .*out of"):
        run_bench(broken)


def test_wrong_inputs_are_said_before_anything_is_timed(small: Path, tmp_path: Path) -> None:
    free = save(tmp_path / "free.onnx", model([node("MatMul", "x w", "y")], {"x": ("n", "t", 4)}, {"w": weight(4, 2)}))
    with pytest.raises(InputError, match="free: input 'x' has free axes"):
        run_bench(small, free)
    assert run_bench(free, input_spec=InputSpec({"x": (2, 5, 4)})).timings[0].candidate.batch == 2


def test_costs_are_per_sample(small: Path) -> None:
    batch = np.ones((6, 4), dtype=np.float32)
    assert run_bench(small, input_spec=InputSpec(arrays={"x": batch})).models[0].costs.dense_flops == 2 * 8


def test_runs_and_files_and_backends(trainer: Trainer, tmp_path: Path) -> None:
    run = trainer("train.epochs=1")
    with untouched(run.path):
        found = run_bench(run.path, backends=("onnxruntime", "torch"))
    assert [timing.candidate.backend for timing in found.timings] == ["onnxruntime", "torch"]
    assert found.reference(found.timings[1].candidate) is found.timings[0]
    assert found.models[0].accuracy == pytest.approx(100 - run.result()["final_error"], abs=1e-3)
    assert len(found.models[0].pixels) == 28


def test_a_pruned_run_is_compared_with_what_was_trained(trainer: Trainer) -> None:
    run = trainer("train.epochs=1", "sparsity.sparsity=0.95")
    report = prune_run(run)["report"]
    with untouched(run.path):
        found = run_bench(run.path)
    small, whole = found.models
    assert (small.trained, whole.label, whole.added) == (whole.label, f"{small.label} (trained)", True)
    assert found.baseline == whole.label
    assert found.of_trained(found.timings[0]) is not None
    assert small.costs.bitmask_bytes == report["after"]["bitmask_bytes"]  # though the file has columns of zeros
    assert small.costs.sparse_flops == report["after"]["flops"]
    assert "pruned_shapes" in small.facts
    assert whole.costs.bitmask_bytes == report["before"]["bitmask_bytes"]


def test_a_file_that_lies_about_what_was_pruned(small: Path) -> None:
    made, expected = onnx.load(small), run_bench(small).models[0].costs.bitmask_bytes
    for lie in ({"w": [1, 1]}, {"w": [4]}, {"w": "x"}, {"w": [-1, 2]}, {"w": [9, 9]}, {"nobody": [1, 1]}, ["w"], 3):
        helper.set_model_props(made, {"rigl_compress": json.dumps({"pruned_shapes": lie})})
        onnx.save(made, small)
        assert run_bench(small).models[0].costs.bitmask_bytes == expected, lie


def test_external_data(small: Path, tmp_path: Path) -> None:
    made = onnx.load(small)
    path = tmp_path / "outside.onnx"
    onnx.save(made, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert run_bench(path).models[0].costs == run_bench(small).models[0].costs


def test_a_profile_names_weights_and_their_flops(tmp_path: Path) -> None:
    """Also after the runtime has fused operators, and stored the weights in another order."""
    nodes = [node("Conv", "x k", "c", pads=[1, 1, 1, 1]), node("Relu", "c", "r"), node("Conv", "r l", "y")]
    constants = {
        "k": np.random.default_rng(0).random((16, 3, 3, 3)).astype(np.float32),
        "l": weight(16, 16, 1, 1, zeros=128),
    }
    constants["l"] = constants["l"] * np.random.default_rng(1).random((16, 16, 1, 1)).astype(np.float32)
    path = save(tmp_path / "net.onnx", model(nodes, {"x": (1, 3, 8, 8)}, constants))
    rows = {row.name: row for row in profile(path, {"x": np.ones((1, 3, 8, 8), dtype=np.float32)}, 1)}
    assert rows["k"].dense_flops == rows["k"].sparse_flops == 2 * 16 * 27 * 64
    assert (rows["l"].dense_flops, rows["l"].sparse_flops) == (2 * 256 * 64, 256 * 64)
    assert all(row.seconds >= 0 for row in rows.values())


def test_footprints(small: Path, large: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.ones((1, 4), dtype=np.float32))
    found = footprints({"a": small, "b": large}, dict.fromkeys("ab", tmp_path / "x.npz"), 1)
    assert all(0 < each.load_seconds < 60 and 10_000 < each.peak_bytes < 10**9 for each in found.values())
    assert set(found) == {"a", "b"}
