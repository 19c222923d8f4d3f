"""Budgets: how they are typed, and that what is measured meets them."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_layers import correlated, draw, model_of, perceptron, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.exporters.restore import restore
from rigl_compress.onnx_pruning.budget_outcome import BudgetOutcome
from rigl_compress.onnx_pruning.budget_search import CLOSE, TrialTimer, candidates_of, within, within_time
from rigl_compress.onnx_pruning.layer_costs import byte_costs, time_costs
from rigl_compress.onnx_pruning.layer_errors import LayerErrors
from rigl_compress.onnx_pruning.prunable_layers import find_prunable
from rigl_compress.onnx_pruning.pruned_file import PrunedFile
from rigl_compress.onnx_pruning.sparsify_report import layer_table, summary_table
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.sparsity.budgets import Budget, parse_budget

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("speedup=2", 2.0), ("speedup=1.5x", 1.5), ("latency=250us", 2.5e-4), ("latency=2s", 2.0)),
        *(("size=3kB", 3000.0), ("size=380", 380.0), ("flops=2.5M", 2.5e6)),
    ],
)
def test_budgets_are_read(text: str, value: float) -> None:
    assert parse_budget(text) == Budget(text.partition("=")[0], pytest.approx(value))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["speed=2", "speedup", "speedup=fast", "latency=3parsecs", "size=0", "size=-1", "size=inf"]
)
def test_bad_budgets(text: str) -> None:
    with pytest.raises(InputError, match="budget"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speedup=2ms", "has the unit 'ms', expected one of speedup: x or none"),
        ("latency=3MB", "has the unit 'MB', expected one of latency: us, µs, ms, s"),
        ("latency=8", "has no unit, expected one of latency: us, µs, ms, s"),
        ("size=3ms", "has the unit 'ms', expected one of size: B, kB, MB, GB, KiB, MiB, GiB or none"),
        ("flops=3kB", "has the unit 'kB', expected one of flops: K, M, G or none"),
        ("size=3x", "has the unit 'x'"),
    ],
)
def test_each_kind_has_its_units(text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        parse_budget(text)


def candidates() -> Any:
    model = model_of(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])],
        [[16, 512]],
        {"a": draw(512, 512), "b": draw(512, 512)},
    )
    layers = find_prunable(model).layers
    errors = {name: LayerErrors((0.8, 0.4, 0.1), (0.01, 0.05, 0.3), s) for name, s in (("a", 1.0), ("b", 8.0))}
    costs = time_costs(model, layers, {"x": draw(16, 512)})
    return candidates_of(layers, errors, costs)


def test_predicted_times_fall_and_dense_ones_are_not_faster() -> None:
    for each in candidates().values():
        assert each[0].density == 1.0
        assert [one.cost for one in each] == sorted((one.cost for one in each), reverse=True)
        assert each[-1].cost < each[0].cost / 4


def test_times_behind_a_shape_that_is_computed_are_those_of_a_run() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Slice", ["r", "from", "to"], ["part"]),
        helper.make_node("MatMul", ["part", "a"], ["y"]),
    ]
    weights = {"a": draw(256, 256), "from": np.array([0], np.int64), "to": np.array([32], np.int64)}
    model = model_of(nodes, [["n", "tokens", 256]], weights)
    plain = model_of([helper.make_node("MatMul", ["x", "a"], ["y"])], [[2, 24, 256]], {"a": draw(256, 256)})
    sample = {"x": draw(2, 24, 256)}
    found, known = (time_costs(each, find_prunable(each).layers, sample)["a"] for each in (model, plain))
    assert [found(each) for each in (1.0, 0.3, 0.1)] == [known(each) for each in (1.0, 0.3, 0.1)]


@needs_kernels
def test_reports_have_the_predicted_times_of_layers(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])]
    saved(model_of(nodes, [["n", 512]], {"a": draw(512, 512), "b": draw(512, 512)}), tmp_path / "net.onnx")
    quick = TimingPlan(openings=1, rounds=2, seconds=1.0)
    given = {"sparsity": 0.9, "timing": quick, "dense": ("b",)}
    found = rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", **given)
    costs = time_costs(onnx.load(tmp_path / "net.onnx"), find_prunable(onnx.load(tmp_path / "net.onnx")).layers,
                       {"x": draw(1, 512)})  # fmt: skip
    assert [each.name for each in found.layers] == ["a"]
    assert found.layers[0].predicted == pytest.approx((1e-9 * costs["a"](1.0), 1e-9 * costs["a"](0.1)), rel=0.01)
    assert found.predicted == found.layers[0].predicted
    assert "predicted for these layers" in dict(summary_table(found).rows)
    assert " → " in layer_table(found).rows[0][-1]


@pytest.mark.parametrize("speedup", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("wrong", [0.9, 1.0, 1.6])
def test_wrong_predictions_are_corrected_by_measuring(speedup: float, wrong: float) -> None:
    """The true time: more or less than predicted for what is sparse, and another part that no layer has."""
    found = candidates()
    whole = sum(each[0].cost for each in found.values())

    def measured(choice: Any) -> float:
        return 0.1 * whole + whole * (choice.cost / whole) ** wrong

    got = within_time(found, Budget("speedup", speedup), 1.1 * whole, measured)
    assert got.cost == pytest.approx(1.1 * whole / speedup, rel=2 * CLOSE)
    assert got.choice.densities["b"] >= got.choice.densities["a"]


def test_a_time_that_cannot_be_met_names_the_closest() -> None:
    found = candidates()
    with pytest.raises(InputError, match=r"cannot be met on this machine: the closest is speedup=2\.\d\d"):
        within_time(found, Budget("speedup", 9), 1.0, lambda choice: max(0.4, 1.0 - len(choice.chosen)))


def test_bytes_are_corrected() -> None:
    layers = find_prunable(perceptron()).layers
    errors = {each.name: LayerErrors((0.8, 0.4, 0.1), (0.01, 0.05, 0.3), 1.0) for each in layers}
    every = candidates_of(layers, errors, byte_costs(layers))
    found = within(every, Budget("size", 20_000), 1000, lambda choice: choice.cost * 1.1 + 3000)
    assert 19_500 <= found.cost <= 20_000
    with pytest.raises(InputError, match="the closest is size="):
        within(every, Budget("size", 2_000), 1000, lambda choice: choice.cost + 1500)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    saved(perceptron(hidden=96), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(160, 32))
    paths = {"source": tmp_path / "net.onnx", "path": tmp_path / "small.onnx"}
    return {**paths, "calibration": tmp_path / "data.npz", "timing": None}


@pytest.mark.parametrize(
    ("wished", "settings"),
    [
        ("size=20kB", {}),
        ("size=9kB", {}),
        ("size=9kB", {"method": "magnitude"}),
        ("size=9kB", {"keep_dead_channels": True}),
        ("size=13kB", {"values": "fp16"}),
        ("size=20kB", {"encoding": "bitmask"}),
        ("flops=5K", {}),
    ],
)
def test_files_meet_budgets(wished: str, settings: dict[str, Any], given: dict[str, Any]) -> None:
    found = rc.sparsify_onnx(**given, budget=wished, **settings)
    plain = restore(onnx.load(given["path"]))
    costs = {"size": float(found.bytes), "flops": graph_costs(plain, {"x": draw(1, 32)}).sparse_flops}
    budget = parse_budget(wished)
    assert found.bytes == given["path"].stat().st_size
    assert 0.85 * budget.value <= costs[budget.kind] <= budget.value
    assert found.facts["budget"]["wished"] == wished
    assert found.facts["budget"]["reached"] == pytest.approx(costs[budget.kind], rel=0.01)
    assert dict(summary_table(found).rows)["budget"] == f"{wished}: {BudgetOutcome.read(found.facts['budget']).figure}"


def test_the_closest_size_can_be_reached(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="cannot be met") as raised:
        rc.sparsify_onnx(**given, budget="size=1kB")
    closest = str(raised.value).rpartition("is ")[2]
    assert rc.sparsify_onnx(**given, budget=closest).bytes <= parse_budget(closest).value


def test_a_file_that_is_larger_than_planned_is_pruned_further(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial leaves out 500 bytes that are written."""
    trial = TrialTimer.written

    def smaller(self: TrialTimer, file: PrunedFile) -> Any:
        return lambda choice: trial(self, file)(choice) - 500

    monkeypatch.setattr(TrialTimer, "written", smaller)
    found = rc.sparsify_onnx(**given, budget="size=12kB")
    assert 11_000 < found.bytes <= 12_000
    with pytest.raises(InputError, match="the budget size=3600 cannot be met: the closest is size=") as raised:
        rc.sparsify_onnx(**given, overwrite=True, budget="size=3600")
    assert parse_budget(str(raised.value).rpartition("is ")[2]).value > 3600


def test_no_zero_of_a_fitted_weight_has_a_sign(given: dict[str, Any]) -> None:
    found = rc.sparsify_onnx(**given, sparsity=0.8, encoding="dense", keep_dead_channels=True)
    arrays = [numpy_helper.to_array(each) for each in onnx.load(found.path).graph.initializer]
    assert not any((np.signbit(each) & (each == 0)).any() for each in arrays if each.ndim > 1)


def test_a_budget_that_the_dense_network_meets_removes_nothing(given: dict[str, Any]) -> None:
    found = rc.sparsify_onnx(**given, budget="size=1MB")
    assert found.sparsity == 0
    assert "the budget size=1MB is already met by the original: nothing is removed" in found.notes


@pytest.mark.parametrize(
    ("wished", "latency", "speedup", "line", "words"),
    [
        ("latency=8ms", 8.5e-3, 2.0, "latency=8ms: 8.50 ms", ""),
        ("latency=8ms", 9.6e-3, 2.0, "latency=8ms: 9.60 ms", "is missed: 9.60 ms was measured, 20% more time"),
        ("latency=8ms", 4e-3, 2.0, "latency=8ms: 4.00 ms", "is more than met"),
        ("latency=8ms", None, None, "latency=8ms: 7.90 ms in a trial", ""),
        ("speedup=2", 4e-3, 1.6, "speedup=2: 1.60x", "is missed: 1.60x was measured, 25% more time"),
        ("speedup=2", None, None, "speedup=2: 1.97x in a trial", ""),
        ("size=9kB", 4e-3, 1.6, "size=9kB: 8,900 bytes", ""),
        ("flops=5K", 4e-3, 1.6, "flops=5K: 4,900 FLOPs", ""),
    ],
)
def test_what_a_budget_came_to(
    wished: str, latency: float | None, speedup: float | None, line: str, words: str
) -> None:
    figures = {"size": 8900.0, "flops": 4900.0, "latency": latency, "speedup": speedup}
    found = BudgetOutcome.of({"wished": wished, "planned": 7.9e-3, "speedup": 1.97}, figures)
    assert found.line == line
    assert words in "".join(found.notes(removed=True))
    assert bool(found.notes(removed=True)) == bool(words)
    assert not any("more than met" in each for each in found.notes(removed=False))


def test_a_budget_stands_alone(tmp_path: Path) -> None:
    saved(perceptron(), tmp_path / "net.onnx")
    with pytest.raises(InputError, match="leave out --sparsity"):
        rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", budget="speedup=2", sparsity=0.5)
