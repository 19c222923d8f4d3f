"""What layers read: columns of convolutions as ONNX Runtime takes them, and sums that both copies of a model give."""

from itertools import product

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import helper
from onnx_layers import correlated, draw, model_of, perceptron

from rigl_compress.onnx_pruning import layer_inputs
from rigl_compress.onnx_pruning.graph_segments import Cuts
from rigl_compress.onnx_pruning.layer_inputs import Recorder, Stream
from rigl_compress.onnx_pruning.prunable_layers import find_prunable
from rigl_compress.onnx_pruning.pruned_model import PrunedModel
from rigl_compress.onnx_pruning.sampled_windows import columns_of, output_axes, sampled_positions

WINDOWS = [
    {"pads": [1, 1, 1, 1]},
    {"pads": [0, 1, 2, 0], "strides": [2, 1]},
    {"dilations": [2, 1], "strides": [1, 3]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "VALID"},
]


@pytest.mark.parametrize(("window", "groups"), list(product(WINDOWS, (1, 2))))
def test_columns_times_weight_are_the_convolution(window: dict[str, object], groups: int) -> None:
    weight, x = draw(6, 8 // groups, 3, 2, seed=1), draw(3, 8, 9, 10, seed=2)
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=groups, **window)
    model = model_of([node], [x.shape], {"w": np.tile(weight, (8, 1, 1, 1))})
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    layer = find_prunable(model).layers[0]
    assert output_axes(layer, x.shape) == (3, *expected.shape[2:])
    positions = sampled_positions(layer, x.shape, 20, seed=0)
    columns = columns_of(layer, x, positions)
    found = torch.from_numpy(layer.blocks(np.tile(weight, (8, 1, 1, 1)))) @ columns
    wanted = expected.transpose(1, 0, 2, 3).reshape(expected.shape[1], -1)[:, positions]
    np.testing.assert_allclose(found.reshape(wanted.shape).numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_convolutions_along_one_axis() -> None:
    weight, x = draw(16, 8, 5, seed=1), draw(2, 8, 30, seed=2)
    model = model_of([helper.make_node("Conv", ["x", "w"], ["y"], strides=[2])], [x.shape], {"w": weight})
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    layer = find_prunable(model).layers[0]
    columns = columns_of(layer, x, np.arange(26))[0]
    found = (torch.from_numpy(weight.reshape(16, -1)) @ columns).numpy().reshape(16, 2, 13)
    np.testing.assert_allclose(found.transpose(1, 0, 2), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("room", [2**29, 0])
def test_streams_that_keep_values_and_that_run_again_agree(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "KEPT_BYTES", room)
    model = perceptron()
    layers = find_prunable(model).layers
    pruned = PrunedModel(model)
    changed = {"w1": pruned._stored["w1"].__class__()}
    changed["w1"].CopyFrom(pruned._stored["w1"])
    weight = pruned.original("w1") * 0.5
    changed["w1"].raw_data = weight.tobytes()
    x = correlated(40, 32)
    batches = [{"x": x[:25]}, {"x": x[25:]}]
    recorder = Recorder(Stream(Cuts(model), batches), Stream(Cuts(model), batches), lambda _: 1000)
    recorder.advance(layers[1].first, {}, changed)
    sums = recorder.record(layers[1:2], {}, changed)[0]
    assert recorder.original.place == (layers[1].first if room else 0)
    read = {
        scale: np.maximum(x @ (scale * pruned.original("w1")).T + pruned.original("b1"), 0).astype(np.float64)
        for scale in (1.0, 0.5)
    }
    assert sums.samples == 40
    for found, (one, other) in ((sums.gram, (0.5, 0.5)), (sums.cross, (0.5, 1.0)), (sums.target, (1.0, 1.0))):
        np.testing.assert_allclose(found[0].numpy(), read[one].T @ read[other], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(sums.means[0].numpy(), read[0.5].sum(0), rtol=1e-4, atol=1e-3)
