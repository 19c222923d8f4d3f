"""ONNX in, ONNX out: quality, resuming, and bad input."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx_layers import correlated, draw, model_of, perceptron, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.exporters.restore import restore
from rigl_compress.onnx_pruning import density_plan, one_shot_pruning
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.onnx_pruning.sparsify_onnx import sparsify_curve
from rigl_compress.onnx_pruning.sparsify_report import METRICS, SparsifyReport
from rigl_compress.pipeline.bench.conditions import parse_condition


@pytest.fixture
def files(tmp_path: Path) -> Path:
    saved(perceptron(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(240, 32))
    return tmp_path


def run(folder: Path, output: str = "small.onnx", **settings: Any) -> SparsifyReport:
    given = {"calibration": folder / "data.npz", "timing": None, "samples": 240, **settings}
    return rc.sparsify_onnx(folder / "net.onnx", folder / output, **given)


def zeros(path: Path) -> dict[str, float]:
    tensors = restore(onnx.load(path)).graph.initializer
    return {each.name: float((numpy_helper.to_array(each) == 0).mean()) for each in tensors if len(each.dims) > 1}


def error_of(report: SparsifyReport) -> float:
    assert report.quality.error is not None
    return report.quality.error


def test_second_order_beats_magnitude_and_uses_the_weights_that_it_may(files: Path) -> None:
    found = {
        method: run(files, f"{method}.onnx", method=method, sparsity=0.6, keep_dead_channels=True)
        for method in ("obs", "magnitude")
    }
    assert error_of(found["obs"]) < error_of(found["magnitude"]) / 4
    assert found["obs"].quality.agreement is not None
    for each in found.values():
        assert each.sparsity == pytest.approx(0.6, abs=1e-3)
        assert sum(row.count for row in each.layers) == round(0.4 * sum(row.size for row in each.layers))
        assert {row.name: row.sparsity for row in each.layers} == pytest.approx(zeros(each.path), abs=1e-9)


def test_allocation_by_error_beats_uniform(files: Path) -> None:
    by_error, uniform = (run(files, f"{each}.onnx", sparsity=0.7, allocation=each) for each in ("error", "uniform"))
    assert {round(each.sparsity, 2) for each in uniform.layers} == {0.7}
    assert error_of(by_error) < error_of(uniform)


def test_without_data_by_magnitude_with_a_warning(files: Path) -> None:
    found = run(files, calibration=None, sparsity=0.5)
    assert (found.method, found.allocation) == ("magnitude", "scaled")
    assert "no calibration data" in found.notes[0]
    assert found.sparsity == pytest.approx(0.5, abs=1e-3)


def test_the_written_file_is_what_was_checked(files: Path) -> None:
    before = (files / "net.onnx").read_bytes()
    found = run(files)
    x = correlated(50, 32, seed=7)
    wanted, got = (
        ort.InferenceSession(str(files / name)).run(None, {"x": x})[0] for name in ("net.onnx", "small.onnx")
    )
    cosine = (wanted * got).sum(1) / np.linalg.norm(wanted, axis=1) / np.linalg.norm(got, axis=1)
    assert cosine.mean() == pytest.approx(found.quality.cosine, abs=0.02)
    assert (files / "net.onnx").read_bytes() == before
    assert sorted(path.name for path in files.iterdir()) == ["data.npz", "net.onnx", "small.onnx"]


def test_patterns_leave_weights_untouched(files: Path) -> None:
    found = run(files, dense=("w3",))
    assert found.dense == {"w3": "--dense w3"}
    tensors = {each.name: each for each in restore(onnx.load(found.path)).graph.initializer}
    original = {each.name: each for each in perceptron().graph.initializer}
    assert numpy_helper.to_array(tensors["w3"]).tobytes() == numpy_helper.to_array(original["w3"]).tobytes()
    with pytest.raises(InputError, match="matches no weight"):
        run(files, "b.onnx", dense=("nothing*",))


def test_an_interrupted_run_resumes_to_the_same_bytes(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(files, "whole.onnx")

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("pruning") and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(files, "again.onnx", listener=stop)
    assert not (files / "again.onnx").exists()
    assert len(list((files / "again.onnx.sparsify").glob("*.safetensors"))) == 2
    calls: list[str] = []
    original = one_shot_pruning.OneShotPruning._layer

    def counted(self: Any, layer: Any, *others: Any) -> Any:
        calls.append(layer.name)
        return original(self, layer, *others)

    monkeypatch.setattr(one_shot_pruning.OneShotPruning, "_layer", counted)
    resumed = run(files, "again.onnx")
    assert calls == ["w3"]
    assert "resumed: 2 layers were done" in resumed.notes
    assert resumed.layers == whole.layers
    assert (files / "again.onnx").read_bytes() == (files / "whole.onnx").read_bytes()
    assert not (files / "again.onnx.sparsify").exists()


def test_an_interrupted_curve_goes_on_where_it_stopped(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = SparsifyConfig(calibration=files / "data.npz", timing=None)

    def curve(name: str, stop_at: int = -1) -> list[SparsifyReport]:
        pruned = 0

        def stop(what: str, done: int, total: int) -> None:
            nonlocal pruned
            pruned += what.startswith("pruning")
            if pruned == stop_at:
                raise KeyboardInterrupt

        return list(sparsify_curve(files / "net.onnx", files / name, (0.3, 0.6), config, stop))

    whole = curve("whole.onnx")
    assert not list(files.glob("*.sparsify"))
    with pytest.raises(KeyboardInterrupt):
        curve("part.onnx", stop_at=5)  # the second layer of the second file
    assert (files / "part-0.3.onnx").exists()
    monkeypatch.setattr(density_plan, "ErrorProbe", None)  # nothing is measured again
    resumed = curve("part.onnx")
    assert ["resumed: 3 layers were done" in each.notes for each in resumed] == [True, False]
    assert "resumed: 1 layers were done" in resumed[1].notes
    for one, other in zip(whole, resumed, strict=True):
        assert one.path.read_bytes() == other.path.read_bytes()
    assert not list(files.glob("*.sparsify"))
    with pytest.raises(InputError, match="exists"):
        curve("part.onnx")


def test_an_output_of_other_settings_is_kept_beside_layers(files: Path) -> None:
    config = SparsifyConfig(calibration=files / "data.npz", timing=None)
    next(sparsify_curve(files / "net.onnx", files / "part.onnx", (0.3, 0.6), config, lambda *_: None))
    before = (files / "part-0.3.onnx").read_bytes()
    for others in ({"method": "magnitude", "sparsity": 0.3}, {"sparsity": 0.4}):
        with pytest.raises(InputError, match="exists"):
            run(files, "part-0.3.onnx", samples=256, **others)
    assert (files / "part-0.3.onnx").read_bytes() == before


def test_other_settings_do_not_resume(files: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done == 2 and what.startswith("pruning"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(files, listener=stop)
    found = run(files, sparsity=0.8)
    assert found.sparsity == pytest.approx(0.8, abs=1e-3)
    assert not any("resumed" in note for note in found.notes)


def test_convolutions_with_groups_and_shared_weights(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Conv", ["r", "d", "e"], ["s"], group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["s", "g"], ["t"], group=2),
        helper.make_node("GlobalAveragePool", ["t"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["q"]),
        helper.make_node("Tanh", ["q"], ["u"]),
        helper.make_node("MatMul", ["u", "m"], ["y"]),
    ]
    weights = {"a": draw(16, 4, 3, 3), "d": draw(16, 1, 5, 5), "e": draw(16), "g": draw(20, 8, 3, 3), "m": draw(20, 20)}
    saved(model_of(nodes, [["n", 4, 12, 12]], weights), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(120 * 36, 16).reshape(120, 4, 12, 12))
    found = run(tmp_path, sparsity=0.5, allocation="uniform")
    assert {each.name: (round(each.sparsity, 2), each.how.partition(",")[0]) for each in found.layers} == {
        "a": (0.5, "obs"),
        "d": (0.0, "refitted"),
        "g": (0.5, "obs"),
        "m": (0.5, "obs"),
    }
    magnitude = run(tmp_path, "magnitude.onnx", sparsity=0.5, allocation="uniform", method="magnitude")
    assert error_of(found) < error_of(magnitude) / 2
    assert any("one channel per output: d" in note for note in found.notes)


def test_the_bias_takes_up_the_mean_that_outputs_lost(tmp_path: Path) -> None:
    weights = {"w": draw(20, 32), "b": draw(20, seed=1)}
    model = model_of([helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)], [["n", 32]], weights)
    saved(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(240, 32) + 3)
    x = correlated(4000, 32, seed=5) + 3
    found = run(tmp_path, sparsity=0.7, keep_dead_channels=True)
    wanted, got = (ort.InferenceSession(each).run(None, {"x": x})[0] for each in (tmp_path / "net.onnx", found.path))
    off = np.abs(wanted.mean(0) - got.mean(0)) / wanted.std(0)
    assert off.max() < 0.15


def test_few_samples_fall_back_and_fewer_than_columns_are_damped(tmp_path: Path) -> None:
    model = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [["n", 200]], {"w": draw(200, 30)})
    saved(model, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=draw(8, 200))
    found = run(tmp_path, allocation="uniform")
    assert found.layers[0].how == "magnitude: 6 samples for 200 columns"
    assert any("pruned by magnitude: w" in note for note in found.notes)
    np.savez(tmp_path / "data.npz", x=draw(80, 200))
    found = run(tmp_path, overwrite=True)
    assert "singular" in found.layers[0].how
    assert any("damped" in note for note in found.notes)


def test_conditions(files: Path) -> None:
    found = run(files)
    texts = ("cosine>=0.5", "snr>=1", "agreement>=1.1", "size<=1.1x", "latency<=1s")
    verdicts = found.check([parse_condition(text, METRICS) for text in texts])
    assert [each.holds for each in verdicts] == [True, True, False, True, False]
    with pytest.raises(InputError, match="no known metric"):
        parse_condition("accuracy>=1", METRICS)


def test_bad_input(files: Path) -> None:
    (files / "small.onnx").write_bytes(b"kept")
    with pytest.raises(InputError, match="exists"):
        run(files)
    with pytest.raises(InputError, match="source itself"):
        run(files, "net.onnx", overwrite=True)
    with pytest.raises(InputError, match="needs samples"):
        run(files, calibration=None, method="obs")
    with pytest.raises(InputError, match="no method"):
        run(files, method="nothing")
    with pytest.raises(InputError, match="sparsity is 1"):
        run(files, sparsity=1.0)
    assert (files / "small.onnx").read_bytes() == b"kept"


def test_a_folder_of_someone_else_is_found_before_the_work(files: Path) -> None:
    (files / "small.onnx.sparsify").mkdir()
    (files / "small.onnx.sparsify" / "mine.json").write_text("{}")
    steps: list[str] = []
    with pytest.raises(InputError, match="holds other files"):
        run(files, listener=lambda what, *_: steps.append(what))
    assert not steps
    assert (files / "small.onnx.sparsify" / "mine.json").exists()


def test_models_that_cannot_be_pruned(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=draw(20, 32))
    saved(model_of([helper.make_node("Relu", ["x"], ["y"])], [["n", 32]], {}), tmp_path / "net.onnx")
    with pytest.raises(InputError, match="no weight that can be pruned"):
        run(tmp_path)
    refused = model_of([helper.make_node("MatMul", ["x", "w"], ["y"])], [["n", 32]], {"w": draw(31, 20)})
    saved(refused, tmp_path / "net.onnx")
    with pytest.raises(InputError, match="ONNX Runtime does not"):
        run(tmp_path)
    undefined = model_of(
        [helper.make_node("Log", ["x"], ["l"]), helper.make_node("MatMul", ["l", "w"], ["y"])],
        [["n", 32]],
        {"w": draw(32, 20)},
    )
    saved(undefined, tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=-1 - np.abs(draw(20, 32)))
    with pytest.raises(InputError, match="no finite numbers"):
        run(tmp_path)
    assert not (tmp_path / "small.onnx").exists()
    assert not (tmp_path / "small.onnx.sparsify").exists()


def test_inputs_of_a_layer_that_are_not_finite(tmp_path: Path) -> None:
    """A layer that reads NaN falls back to magnitude, which is said; the others are fitted."""
    nodes = [
        helper.make_node("Log", ["x"], ["l"]),
        helper.make_node("MatMul", ["l", "a"], ["h"]),
        helper.make_node("IsNaN", ["h"], ["bad"]),
        helper.make_node("Where", ["bad", "zero", "h"], ["kept"]),
        helper.make_node("MatMul", ["x", "b"], ["g"]),
        helper.make_node("Add", ["kept", "g"], ["y"]),
    ]
    weights = {"a": draw(32, 20), "b": draw(32, 20, seed=1), "zero": np.zeros(1, np.float32)}
    saved(model_of(nodes, [["n", 32]], weights), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(240, 32))
    found = run(tmp_path)
    how = {each.name: each.how for each in found.layers}
    assert how["a"] == "magnitude: its inputs are not finite"
    assert how["b"].startswith("obs")
    assert any("pruned by magnitude: a (magnitude: its inputs are not finite)" in note for note in found.notes)
    assert found.quality.snr is not None
    assert np.isfinite(found.quality.snr)
