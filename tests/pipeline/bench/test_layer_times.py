"""Measured times of layers are those of the operators that hold their weights."""

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from onnx_layers import draw, model_of, saved

from rigl_compress.pipeline.bench.layer_times import layer_times
from rigl_compress.runtime.kernel_library import unavailable_reason


def test_a_dense_layer_with_a_sum_after_it_has_the_time_of_its_product(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    model = model_of(nodes, [[1, 256, 768]], {"w": draw(768, 768), "b": draw(768)})
    saved(model, tmp_path / "net.onnx")
    (found,) = layer_times(tmp_path / "net.onnx", {"x": draw(1, 256, 768)}, 1)
    assert (found.name, found.kernel) == ("w", "dense")
    assert found.seconds > 0.6e-3  # 150 million products; the sum takes 50 microseconds


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
def test_filters_in_the_operator_of_the_layer_before_them_have_no_time_of_their_own(tmp_path: Path) -> None:
    filters = {"group": 384, "pads": [1, 1, 1, 1]}
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Conv", ["h", "d"], ["y"], **filters)]
    sparse = np.where(np.arange(384 * 64) % 16 == 0, draw(384 * 64), np.float32(0)).reshape(384, 64, 1, 1)
    model = model_of(nodes, [[1, 64, 28, 28]], {"w": sparse, "d": draw(384, 1, 3, 3)})
    saved(model, tmp_path / "net.onnx")
    pointwise, depthwise = layer_times(tmp_path / "net.onnx", {"x": draw(1, 64, 28, 28)}, 1)
    assert (pointwise.name, pointwise.kernel, depthwise.kernel) == ("w", "SparseConv", "DepthwiseConv")
    assert pointwise.seconds > 0 == depthwise.seconds
