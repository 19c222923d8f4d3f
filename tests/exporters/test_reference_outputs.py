"""Inputs for models from elsewhere: whatever they take, or a sentence that asks for inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import onnx_layer, sparse_weight
from tiny import untouched

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.input_size_probe import LARGEST_PROBE
from rigl_compress.exporters.onnx_export import Layout, reencode
from rigl_compress.exporters.ort_sessions import arrays_in, open_session
from rigl_compress.exporters.reference_outputs import ReferenceRun, random_reference


def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], **weights: Any) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "elsewhere", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def value(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(shape))


def inputs_of(model: onnx.ModelProto, folder: Path) -> list[dict[str, Any]]:
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    return [dict(each) for each in trial_of_file(folder / "model.onnx").inputs]


def trial_of_file(path: Path) -> ReferenceRun:
    return random_reference(open_session(path), path)


def test_two_samples_and_one(tmp_path: Path) -> None:
    assert [each["x"].shape for each in inputs_of(onnx_layer(sparse_weight()), tmp_path)] == [(2, 60), (1, 60)]


def test_a_model_that_ends_the_process_is_tried_elsewhere(tmp_path: Path) -> None:
    """Whole numbers divided by zero are a signal to the process, not an error: here for batches of two."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["samples"]),
        helper.make_node("Sub", ["two", "samples"], ["nothing"]),
        helper.make_node("Div", ["two", "nothing"], ["quotient"]),
        helper.make_node("Cast", ["quotient"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "number"], ["y"]),
    ]
    weights = {"zero": np.array(0), "two": np.array(2)}
    model = made(nodes, [value("x", "n", 3)], [value("y", "n", 3)], **weights)
    assert [each["x"].shape for each in inputs_of(model, tmp_path)] == [(1, 3)]


def test_a_model_that_takes_one_sample_whatever_it_says(tmp_path: Path) -> None:
    model = onnx_layer(sparse_weight())
    model.graph.node.insert(0, helper.make_node("Reshape", ["x", "one"], ["flat"]))
    model.graph.node[1].input[0] = "flat"
    model.graph.initializer.append(numpy_helper.from_array(np.array([1, 60]), "one"))
    onnx.save(model, tmp_path / "one.onnx")
    assert reencode(tmp_path / "one.onnx", tmp_path / "out.onnx", Layout("gap8")).difference == 0
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array([3, 60]), "one"))
    onnx.save(model, tmp_path / "one.onnx")
    with untouched(tmp_path), pytest.raises(InputError, match="does not run on random inputs: pass inputs that fit"):
        reencode(tmp_path / "one.onnx", tmp_path / "other.onnx")


def test_images_of_any_size_are_made_large_enough(tmp_path: Path) -> None:
    kernel = sparse_weight(shape=(4, 3, 9, 9))
    conv = helper.make_node("Conv", ["x", "w"], ["y"], strides=[4, 4])
    model = made([conv], [value("x", "n", 3, "height", "width")], [value("y", "n", 4, "h", "w")], w=kernel)
    assert [each["x"].shape for each in inputs_of(model, tmp_path)] == [(1, 3, 32, 32)]


def test_sound_of_any_length_is_made_long_enough_but_not_its_batch(tmp_path: Path) -> None:
    kernel = sparse_weight(shape=(4, 1, 400))
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["row"]),
        helper.make_node("Conv", ["row", "w"], ["heard"]),
        helper.make_node("Cast", ["lengths"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "column"], ["scale"]),
        helper.make_node("Mul", ["heard", "scale"], ["y"]),
    ]
    inputs = [value("x", "batch", "N"), value("lengths", "batch", kind=TensorProto.INT64)]
    weights = {"w": kernel, "axis": np.array([1]), "column": np.array([-1, 1, 1])}
    model = made(nodes, inputs, [value("y", "batch", 4, "M")], **weights)
    (drawn,) = inputs_of(model, tmp_path)
    assert (drawn["x"].shape, drawn["lengths"].shape) == ((1, 640), (1,))


def test_the_memory_is_not_filled(tmp_path: Path) -> None:
    kernel = sparse_weight(shape=(1, 1, 2001, 1))
    model = made(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [value("x", "n", 1, "height", "width")],
        [value("y", "n", 1, "h", "w")],
        w=kernel,
    )
    assert LARGEST_PROBE < 4000**2
    with pytest.raises(InputError, match="does not run on random inputs"):
        inputs_of(model, tmp_path)


def test_a_model_that_draws_random_numbers_is_told_apart(tmp_path: Path) -> None:
    noise = helper.make_node("RandomNormalLike", ["y"], ["noise"])
    model = onnx_layer(sparse_weight())
    model.graph.node.extend([noise, helper.make_node("Add", ["y", "noise"], ["z"])])
    model.graph.output[0].name = "z"
    onnx.save(model, tmp_path / "in.onnx")
    with untouched(tmp_path), pytest.raises(InputError, match="have different outputs, as the model draws random"):
        reencode(tmp_path / "in.onnx", tmp_path / "out.onnx")


def test_sequences_are_compared_too(tmp_path: Path) -> None:
    """Classifiers of other tools give sequences of maps; here is one of tensors."""
    model = onnx_layer(sparse_weight())
    model.graph.node.append(helper.make_node("SplitToSequence", ["y"], ["pieces"], axis=1))
    pieces = helper.make_tensor_sequence_value_info("pieces", TensorProto.FLOAT, ["n", 1])
    model.graph.output[0].CopyFrom(pieces)
    onnx.save(model, tmp_path / "in.onnx")
    assert reencode(tmp_path / "in.onnx", tmp_path / "out.onnx", Layout("gap8")).difference == 0
    reference = trial_of_file(tmp_path / "out.onnx")
    assert [len(outputs) for outputs in reference.outputs] == [40, 40]


def test_maps_are_arrays_too() -> None:
    found = arrays_in([{"a": 0.5, "b": 0.25}, None, np.ones(2)])
    assert [each.tolist() for each in found] == ["a", "b", 0.5, 0.25, [1, 1]]
