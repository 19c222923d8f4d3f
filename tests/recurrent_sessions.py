"""Recurrent layers in our session and in that of ONNX Runtime, on the same random inputs."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from rigl_compress.exporters.verify import largest_difference
from rigl_compress.runtime import session as module
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.session import InferenceSession

TOLERANCE = 1e-5


def inputs_of(model: onnx.ModelProto, steps: int, batch: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Draw the inputs of a model with axes "t" and "n"; those named "lengths" are lengths of sequences."""
    rng, sizes, drawn = np.random.default_rng(seed), {"t": steps, "n": batch}, {}
    for each in model.graph.input:
        shape = [axis.dim_value or sizes[axis.dim_param] for axis in each.type.tensor_type.shape.dim]
        drawn[each.name] = rng.standard_normal(shape).astype(np.float32)
        if each.name == "lengths":
            drawn[each.name] = rng.integers(0, steps + 1, batch).astype(np.int32)
    return drawn


def assert_same(model: onnx.ModelProto, *, sparse: int, steps: int = 5, batch: int = 2, seed: int = 0) -> None:
    """Compare both sessions, and count the sparse layers of ours."""
    ours = InferenceSession(model.SerializeToString())
    assert len(ours.sparse_layers) == sparse
    _compare(model, ours, inputs_of(model, steps, batch, seed))


def assert_rewritten_same(
    model: onnx.ModelProto, operator: str, *, steps: int, batch: int, seed: int, threads: int
) -> None:
    """Compare a model whose only layer is rewritten whether it gains or not."""
    rewritten = rewrite(model, lambda *_: True, threads)
    assert [layer.operator for layer in rewritten.layers] == [operator]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    module.register(options)
    ours = ort.InferenceSession(rewritten.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    _compare(model, ours, inputs_of(model, steps, batch, seed))


def _compare(model: onnx.ModelProto, ours: Any, inputs: dict[str, NDArray[Any]]) -> None:
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert largest_difference(ours.run(None, inputs), theirs.run(None, inputs)) < TOLERANCE
