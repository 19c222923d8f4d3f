"""Files that have zeros already: these stay, and are counted."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_layers import Array, correlated, draw, model_of, saved
from torch import from_numpy

import rigl_compress as rc
from rigl_compress.exporters.restore import restore
from rigl_compress.onnx_pruning import layer_surgery
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.sparsity.second_order import Moments, surgeon

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
QUICK = TimingPlan(openings=1, rounds=2, seconds=1.0)
WAYS = [
    {"method": method, "allocation": allocation}
    for method in ("obs", "magnitude")
    for allocation in ("error", "uniform", "scaled")
]


def thinned(weight: Array, share: float) -> Array:
    """Return a weight without its smallest elements."""
    return np.where(np.abs(weight) > np.quantile(np.abs(weight), share), weight, np.float32(0))


def sparse_net(*shares: float) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], group=2, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "d"], ["s"], group=32, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["s", "b"], ["y"]),
    ]
    weights = {"a": draw(32, 4, 3, 3), "d": draw(32, 1, 5, 5), "b": draw(20, 32, 1, 1)}
    weights = {name: thinned(each, share) for (name, each), share in zip(weights.items(), shares, strict=True)}
    return model_of(nodes, [["n", 8, 6, 6]], weights)


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    np.savez(tmp_path / "data.npz", x=correlated(80 * 36, 8).reshape(80, 6, 6, 8).transpose(0, 3, 1, 2))
    paths = {"source": tmp_path / "net.onnx", "path": tmp_path / "small.onnx"}
    return {**paths, "calibration": tmp_path / "data.npz", "timing": None, "keep_dead_channels": True}


def weights_of(path: Path) -> dict[str, Array]:
    found = restore(onnx.load(path)).graph.initializer
    return {each.name: numpy_helper.to_array(each) for each in found if len(each.dims) > 1}


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way.values()))
@pytest.mark.parametrize("shares", [(0.8, 0.3, 0.8), (0.7, 0.3, 0.1)])
def test_zeros_stay_and_are_counted(way: dict[str, str], shares: tuple[float, ...], given: dict[str, Any]) -> None:
    saved(sparse_net(*shares), given["source"])
    found = rc.sparsify_onnx(**given, **way, sparsity=0.5)
    before, after = weights_of(given["source"]), weights_of(given["path"])
    for layer in found.layers:
        assert not after[layer.name][before[layer.name] == 0].any()
        assert layer.count == np.count_nonzero(after[layer.name])
    had = 1 - sum(np.count_nonzero(before[name]) for name in "ab") / sum(before[name].size for name in "ab")
    said = [note for note in found.notes if "more than the 50.00% asked" in note]
    assert bool(said) == (had > 0.5)
    if had > 0.5 or way["allocation"] != "uniform":
        assert found.sparsity == pytest.approx(max(had, 0.5), abs=2e-3)


def test_what_is_left_is_fitted(given: dict[str, Any]) -> None:
    saved(sparse_net(0.5, 0.0, 0.5), given["source"])
    errors = {}
    for method in ("obs", "magnitude"):
        found = rc.sparsify_onnx(**given, method=method, sparsity=0.8, overwrite=True)
        assert found.sparsity == pytest.approx(0.8, abs=2e-3)
        errors[method] = found.quality.error
    assert errors["obs"] is not None
    assert errors["magnitude"] is not None
    assert errors["obs"] < errors["magnitude"] / 2


def test_zeros_of_wide_layers_stay(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_surgery, "WIDEST", 8)
    saved(sparse_net(0.3, 0.0, 0.3), given["source"])
    found = rc.sparsify_onnx(**given, sparsity=0.35)
    before, after = weights_of(given["source"]), weights_of(given["path"])
    assert found.sparsity == pytest.approx(0.35, abs=0.02)
    for name in "ab":
        assert not after[name][before[name] == 0].any()


@pytest.mark.parametrize(
    ("budget", "timing"), [("size=1MB", None), pytest.param("latency=1s", QUICK, marks=needs_kernels)]
)
def test_budgets_count_zeros_that_there_are(budget: str, timing: TimingPlan | None, given: dict[str, Any]) -> None:
    saved(sparse_net(0.8, 0.0, 0.8), given["source"])
    found = rc.sparsify_onnx(**(given | {"timing": timing}), budget=budget)
    assert found.sparsity == pytest.approx(0.8, abs=0.01)
    assert [note for note in found.notes if "budget" in note] == [
        f"the budget {budget} is already met by the original: nothing is removed"
    ]


def test_the_surgeon_leaves_allowed_elements_alone() -> None:
    weight, x = from_numpy(draw(6, 130)).double(), from_numpy(draw(400, 130, seed=1)).double()
    allowed = from_numpy(draw(6, 130, seed=2)) > 0
    found, mask = surgeon(weight, Moments(x.T @ x, x.T @ (x @ weight.T)), 200, allowed)
    assert int(mask.sum()) == 200
    assert not (mask & ~allowed).any()
    assert not found[~mask].any()
