"""Measured times of layers are those of the operators that hold their weights."""

from pathlib import Path

from onnx import helper
from onnx_layers import draw, model_of, saved

from rigl_compress.pipeline.bench.layer_times import layer_times


def test_a_dense_layer_with_a_sum_after_it_has_the_time_of_its_product(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
    model = model_of(nodes, [[1, 256, 768]], {"w": draw(768, 768), "b": draw(768)})
    saved(model, tmp_path / "net.onnx")
    (found,) = layer_times(tmp_path / "net.onnx", {"x": draw(1, 256, 768)}, 1)
    assert (found.name, found.kernel) == ("w", "dense")
    assert found.seconds > 0.6e-3  # 150 million products; the sum takes 50 microseconds
