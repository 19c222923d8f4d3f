"""Checks of an exported file before it is moved into place."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters.onnx_file import any_shape
from rigl_compress.exporters.ort_sessions import Array, Inputs, open_session, run_session, session_options
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import metadata_of


class VerificationError(InputError):
    """An exported file fails a check, and is not moved into place."""


def check_valid(model: onnx.ModelProto) -> None:
    """Run `onnx.checker` without its full check.

    The full check refuses every sparse initializer, and pooling with padding and `ceil_mode`, whose shape it rounds
    otherwise than torch and ONNX Runtime do. Outputs need no shape, as when the source was loaded.
    """
    try:
        with any_shape(model.graph):
            onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise VerificationError(f"the model does not pass onnx.checker: {one_line(error)}") from None


def largest_difference(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the largest difference of two lists of outputs, relative to the largest expected number.

    >>> largest_difference([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
    0.25
    """
    if [each.shape for each in found] != [each.shape for each in expected]:
        shapes = ([each.shape for each in found], [each.shape for each in expected])
        raise VerificationError(f"the outputs have shapes {shapes[0]}, expected {shapes[1]} as in the source")
    return max((_difference(one, other) for one, other in zip(found, expected, strict=True)), default=0.0)


def _difference(found: Array, expected: Array) -> float:
    if found.dtype.kind not in "fiub" or not found.size:
        return 0.0 if np.array_equal(found, expected) else float("inf")
    one, other = found.astype(np.float64), expected.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    if same.all():
        return 0.0
    finite = np.isfinite(one) & np.isfinite(other)
    if not (finite | same).all():
        return float("inf")
    scale = np.abs(other[finite]).max()
    return float(np.abs(one - other)[finite].max() / (scale or 1.0))


def check_folded(optimized: onnx.ModelProto, model: onnx.ModelProto) -> None:
    """Check that the runtime rebuilt every weight at load, and computes none of them in each run."""
    rebuilt = _ancestors(model.graph, metadata_of(model).get("tensors", {}))
    for node in optimized.graph.node:
        left = rebuilt & set(node.output)
        if left:
            raise VerificationError(
                f"ONNX Runtime does not fold {node.op_type} of {sorted(left)[0]!r}: choose another encoding"
            )


def _ancestors(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """Return the names of values and of all values that they are computed from."""
    producers = {output: node for node in graph.node for output in node.output}
    found, waiting = set(), list(names)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(producers[each].input if each in producers else ())
    return found


def check_zeros(model: onnx.ModelProto, plain: onnx.ModelProto, *, exact: bool) -> None:
    """Check that weights are zero in the file where they are in the plain model; with `exact`, that all bits match."""
    found = {tensor.name: tensor for tensor in restore(model).graph.initializer}
    for tensor in plain.graph.initializer:
        if tensor.name not in found:
            raise VerificationError(f"{tensor.name!r} cannot be read back from the file: report this with the model")
        if found[tensor.name] == tensor:
            continue
        stored, source = numpy_helper.to_array(found[tensor.name]), numpy_helper.to_array(tensor)
        if exact and stored.tobytes() != source.tobytes():
            raise VerificationError(f"{tensor.name!r} is not stored bit by bit: report this with the model")
        if stored.shape != source.shape or (source.dtype.kind == "f" and np.any(stored[source == 0] != 0)):
            raise VerificationError(
                f"{tensor.name!r} has weights where the source has zeros: report this with the model"
            )


def check_rebuilt(model: onnx.ModelProto) -> None:
    """Check that ONNX Runtime rebuilds the encoded tensors as `restore` does, without running the rest."""
    names = list(metadata_of(model).get("tensors", {}))
    plain = {tensor.name: tensor for tensor in restore(model).graph.initializer}
    session = open_session(_only_rebuilding(model, names)) if names else None
    for name, array in zip(names, run_session(session, {}) if session else [], strict=True):
        stored = numpy_helper.to_array(plain[name])
        if stored.dtype != array.dtype or not np.array_equal(stored, array, equal_nan=stored.dtype.kind == "f"):
            raise VerificationError(f"ONNX Runtime rebuilds {name!r} with other values: report this with the model")


def _only_rebuilding(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    graph, wanted = model.graph, _ancestors(model.graph, names)
    part = onnx.GraphProto(
        name=graph.name,
        node=[node for node in graph.node if wanted & set(node.output)],
        initializer=[tensor for tensor in graph.initializer if tensor.name in wanted],
        sparse_initializer=[sparse for sparse in graph.sparse_initializer if sparse.values.name in wanted],
        value_info=[value for value in graph.value_info if value.name in wanted],
        output=[onnx.helper.make_empty_tensor_value_info(name) for name in names],
    )
    return onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=part)


def check_source_zeros(plain: onnx.ModelProto, weights: Mapping[str, Array]) -> None:
    """Check that each weight is zero in the plain model where it is zero in the network."""
    for tensor in plain.graph.initializer:
        weight = weights.get(tensor.name.removesuffix(".T"))
        if weight is None or weight.ndim < 2 or weight.dtype.kind != "f":
            continue
        weight = weight.T if tensor.name.endswith(".T") else weight
        array = numpy_helper.to_array(tensor)
        # Recurrent weights have another order of gates and an axis for the direction: their zeros are counted.
        changed = np.any(array[weight == 0] != 0) if array.shape == weight.shape else False
        if changed or np.count_nonzero(array) > _nonzeros(tensor.name, weight, weights, array.size):
            raise VerificationError(f"{tensor.name!r} lost its zeros on the way to ONNX: report this with the model")


def _nonzeros(name: str, weight: Array, weights: Mapping[str, Array], size: int) -> int:
    """Return how many non-zeros a tensor of this size may have; one of both directions holds two weights."""
    backwards = weights.get(f"{name}_reverse") if size > weight.size else None
    return int(np.count_nonzero(weight)) + (0 if backwards is None else int(np.count_nonzero(backwards)))


def check_file(path: Path, inputs: Sequence[Inputs], expected: Sequence[Sequence[Array]], tolerance: float) -> float:
    """Run all checks on a file, and return the largest difference of its outputs from those expected."""
    model = onnx.load(path)
    check_valid(model)
    with TemporaryDirectory() as folder:
        options = session_options()
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        session = open_session(path, options)
        check_folded(onnx.load(options.optimized_model_filepath), model)
    difference = difference_of(session, inputs, expected)
    if not difference <= tolerance:
        raise VerificationError(
            f"the outputs differ by {difference:.2g} of the largest, {tolerance:.2g} is allowed: "
            "choose --values with more bits"
        )
    return difference


def difference_of(
    session: ort.InferenceSession, inputs: Sequence[Inputs], expected: Sequence[Sequence[Array]]
) -> float:
    """Run a model on inputs, and return the largest difference of its outputs from those expected."""
    pairs = zip(inputs, expected, strict=True)
    return max((largest_difference(run_session(session, each), wanted) for each, wanted in pairs), default=0.0)
