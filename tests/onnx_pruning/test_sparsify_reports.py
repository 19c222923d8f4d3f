"""What reports of `sparsify` say: figures that are not known, bytes of all files, shares of what can be pruned."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_layers import Array, correlated, draw, model_of, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.onnx_pruning import density_plan
from rigl_compress.onnx_pruning.sparsify_page import sparsify_page
from rigl_compress.onnx_pruning.sparsify_report import METRICS, SparsifyReport, layer_table, summary_table
from rigl_compress.pipeline.bench.conditions import parse_condition
from rigl_compress.pipeline.bench.html_charts import HARD_SPACE
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.runtime.kernel_library import unavailable_reason

needs_kernels = pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())


def run(folder: Path, model: onnx.ModelProto, x: Array | None, **settings: Any) -> SparsifyReport:
    saved(model, folder / "net.onnx")
    data = None if x is None else folder / "data.npz"
    if data is not None:
        np.savez(data, x=x)
    given = {"calibration": data, "timing": None, **settings}
    return rc.sparsify_onnx(folder / "net.onnx", folder / "small.onnx", **given)


def classes_of(*nodes: onnx.NodeProto, **weights: Array) -> onnx.ModelProto:
    """Return a model of nodes up to h, whose largest value is the output."""
    last = helper.make_node("ArgMax", ["h"], ["y"], axis=1, keepdims=0)
    model = model_of([*nodes, last], [["n", 32]], weights)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, ["n"]))
    return model


def test_integers_have_an_agreement_and_meet_no_condition_on_noise(tmp_path: Path) -> None:
    model = classes_of(helper.make_node("MatMul", ["x", "w"], ["h"]), w=draw(32, 20))
    found = run(tmp_path, model, correlated(200, 32), sparsity=0.8)
    assert found.quality.snr is None
    assert found.quality.agreement is not None
    assert 0.2 < found.quality.agreement < 1
    rows = dict(summary_table(found).rows)
    assert rows["signal to noise of the outputs"] == "not known"
    assert "same integers as the original" in rows
    assert f"not{HARD_SPACE}known" in sparsify_page([found])
    verdicts = found.check([parse_condition(text, METRICS) for text in ("snr>=30", "agreement>=0.2", "cosine>=0.1")])
    assert [each.holds for each in verdicts] == [False, True, False]
    assert str(verdicts[0]).endswith("not known")


def test_dead_channels_of_a_model_that_returns_integers_are_removed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["g"]),
        helper.make_node("Relu", ["g"], ["r"]),
        helper.make_node("MatMul", ["r", "b"], ["h"]),
    ]
    weights = {"a": draw(32, 40), "b": draw(40, 20)}
    weights["b"][:10] *= 1e-3
    found = run(tmp_path, classes_of(*nodes, **weights), None, sparsity=0.5, allocation="uniform")
    assert found.facts["dead_channels"]


def test_outputs_that_are_not_finite_are_left_out_and_said(tmp_path: Path) -> None:
    nodes = [helper.make_node("Log", ["x"], ["l"]), helper.make_node("MatMul", ["l", "w"], ["y"])]
    x = np.abs(correlated(200, 32)) + 0.1
    x[::7, 0] = -1
    found = run(tmp_path, model_of(nodes, [["n", 32]], {"w": draw(32, 20)}), x, method="magnitude")
    assert found.quality.cosine == pytest.approx(0.9, abs=0.1)
    assert found.quality.not_finite % 20 == 0
    assert found.quality.not_finite > 0
    rows = dict(summary_table(found).rows)
    wanted = f"{found.quality.not_finite:,} of {found.quality.samples * 20:,}"
    assert rows["outputs left out, as they are not finite"] == wanted


def test_the_bytes_of_a_source_are_those_of_its_external_data_too(tmp_path: Path) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [["n", 64]], {"w": draw(64, 64)})
    whole = len(model.SerializeToString())
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    found = rc.sparsify_onnx(tmp_path / "net.onnx", tmp_path / "small.onnx", timing=None)
    assert found.source_bytes == pytest.approx(whole, abs=200)
    assert found.check([parse_condition("size<=0.9x", METRICS)])[0].holds


def depthwise_net() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "d"], ["s"], group=32, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["s", "b"], ["y"]),
    ]
    weights = {"a": draw(32, 4, 3, 3), "d": draw(32, 1, 5, 5), "b": draw(20, 32, 1, 1)}
    return model_of(nodes, [["n", 4, 8, 8]], weights)


@pytest.mark.parametrize("allocation", ["uniform", "scaled", "error"])
def test_depthwise_layers_count_in_no_share(allocation: str, tmp_path: Path) -> None:
    x = correlated(40 * 64, 4 * 4)[:, :4].reshape(40, 4, 8, 8)
    found = run(tmp_path, depthwise_net(), x, sparsity=0.5, allocation=allocation)
    assert found.sparsity == pytest.approx(0.5, abs=1e-3)
    rows = dict(summary_table(found).rows)
    assert rows["sparsity"] == "50.00% of 2 layers"
    assert rows["left dense, one channel per output"] == "800 weights of 1 layer"
    assert metadata_of(onnx.load(found.path))["sparsify"]["sparsity"] == pytest.approx(0.5, abs=1e-3)


@needs_kernels
def test_times_of_layers_that_the_cost_model_does_not_know(tmp_path: Path) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 6)]
    model = model_of(nodes, [["n", 4, 6, 6, 6]], {"w": draw(16, 4, 3, 3, 3)})
    quick = TimingPlan(openings=1, rounds=2, seconds=1.0)
    found = run(tmp_path, model, draw(20, 4, 6, 6, 6), timing=quick)
    assert (found.layers[0].predicted, found.predicted) == (None, None)
    assert layer_table(found).rows[0][-1] == "not known"


@needs_kernels
@pytest.mark.parametrize(("budget", "closest"), [("speedup=2", "speedup=1.00"), ("latency=1us", "latency=")])
def test_no_time_is_met_where_no_layer_gains(
    budget: str, closest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density_plan, "ErrorProbe", None)  # it is said before anything is measured
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 6)]
    model = model_of(nodes, [["n", 4, 6, 6, 6]], {"w": draw(16, 4, 3, 3, 3)})
    with pytest.raises(InputError, match=f"no layer of the file gains from zeros .* the closest is {closest}"):
        run(tmp_path, model, draw(20, 4, 6, 6, 6), budget=budget)
