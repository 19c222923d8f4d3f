"""Checks that an exported file must pass before it gets its name."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import numpy_helper

from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.models.errors import InputError

Array = NDArray[Any]
Inputs = Mapping[str, Array]
ModelSource = Path | bytes | onnx.ModelProto
LARGEST_DRAWN = 2**27  # numbers: 1 GiB while they are drawn
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_KINDS = {  # as ONNX Runtime calls them, and as numpy does
    **{"tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(bool)": "bool"},
    **{f"tensor({name})": name for name in _INTEGERS},
}


class VerificationError(InputError):
    """An exported file is not what it should be; it was not given its name."""


def check_valid(model: onnx.ModelProto) -> None:
    """Let `onnx.checker` look. Its full check is left out: it refuses every sparse initializer, and pooling with
    padding and `ceil_mode`, whose shape it rounds otherwise than torch and ONNX Runtime do.
    """
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise VerificationError(f"the model does not pass onnx.checker: {_line(error)}") from None


def open_session(model: ModelSource, optimized: Path | None = None) -> ort.InferenceSession:
    """Open a model as anyone would, at the default level of optimization; on request write the graph that is left."""
    options = ort.SessionOptions()
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return session_of(model, options)


def session_of(
    model: ModelSource, options: ort.SessionOptions, providers: Sequence[Any] = ("CPUExecutionProvider",)
) -> ort.InferenceSession:
    """Open a model with options of one's own; what the runtime says to it is one sentence."""
    options.log_severity_level = 4
    content = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    try:
        source = content if isinstance(content, bytes) else str(content)
        # To fall back from the processor to the processor helps nobody, and prints to standard output.
        again = int(list(providers) != ["CPUExecutionProvider"])
        return ort.InferenceSession(source, options, providers=list(providers), enable_fallback=again)
    except Exception as error:  # ONNX Runtime raises a dozen kinds
        raise VerificationError(f"ONNX Runtime does not open the model: {_line(error)}") from None


def run_session(session: ort.InferenceSession, inputs: Inputs) -> list[Array]:
    """Run a model, and give all arrays of its outputs; those of sequences and maps too."""
    try:
        outputs = session.run(None, dict(inputs))
    except Exception as error:
        raise VerificationError(f"ONNX Runtime does not run the model: {_line(error)}; give inputs that fit") from None
    return [array for output in outputs for array in _arrays(output)]


def _arrays(output: Any) -> list[Array]:
    if isinstance(output, dict):
        return _arrays([*output.keys(), *output.values()])
    if isinstance(output, list):
        return [array for each in output for array in _arrays(each)]
    return [] if output is None else [np.asarray(output)]


def input_shapes(session: ort.InferenceSession, batch: int, length: int | None = None) -> dict[str, list[int]]:
    """Give the shapes of a model's inputs when free axes have the size `batch`.

    With `length`, free axes have it that come first in no input: those of images and sequences.
    """
    inputs = session.get_inputs()
    samples = {each.shape[0] for each in inputs if each.shape and isinstance(each.shape[0], str)}

    def size(axis: int, found: Any) -> int:
        if isinstance(found, int) and found > 0:
            return found
        return batch if length is None or axis == 0 or found in samples else length

    return {each.name: [size(*axis) for axis in enumerate(each.shape)] for each in inputs}


def random_inputs(
    session: ort.InferenceSession, batch: int = 2, seed: int = 0, length: int | None = None
) -> dict[str, Array]:
    """Draw inputs that fit a model: uniform numbers, zeros and ones for integers; free axes as in `input_shapes`."""
    rng = np.random.default_rng(seed)
    shapes = input_shapes(session, batch, length)
    check_drawable(session)
    kinds = {each.name: np.dtype(_KINDS[each.type]) for each in session.get_inputs()}
    return {name: random_array(kind, shapes[name], rng) for name, kind in kinds.items()}


def check_drawable(session: ort.InferenceSession) -> None:
    """Refuse a model with inputs of a type that cannot be drawn."""
    for each in session.get_inputs():
        if each.type not in _KINDS:
            raise InputError(f"no random input of type {each.type} for {each.name!r}: give inputs yourself")


def random_array(dtype: np.dtype[Any], shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Draw numbers between 0 and 1; whole numbers are 0 or 1, which are good for most things.

    >>> random_array(np.dtype("int64"), [2, 3], np.random.default_rng(0)).max() < 2
    np.True_
    """
    if prod(shape) > LARGEST_DRAWN:
        raise InputError(f"an input of shape {list(shape)} is too large to be drawn: give inputs that fit yourself")
    drawn = rng.random(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return np.asarray(drawn).astype(dtype)


def largest_difference(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """Give the largest difference of two lists of outputs, in parts of the largest expected number.

    >>> largest_difference([np.array([1.0, 2.5])], [np.array([1.0, 2.0])])
    0.25
    """
    if [each.shape for each in found] != [each.shape for each in expected]:
        shapes = ([each.shape for each in found], [each.shape for each in expected])
        raise VerificationError(f"the outputs have shapes {shapes[0]}, those of the source {shapes[1]}")
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
    """Confirm that the runtime rebuilt every weight at load, once, and computes none of them again in each run."""
    rebuilt = _ancestors(model.graph, metadata_of(model).get("tensors", {}))
    for node in optimized.graph.node:
        left = rebuilt & set(node.output)
        if left:
            raise VerificationError(
                f"ONNX Runtime does not fold {node.op_type} of {sorted(left)[0]!r}: choose another encoding"
            )


def _ancestors(graph: onnx.GraphProto, names: Iterable[str]) -> set[str]:
    """Give the names of all values from which values are computed, themselves included."""
    makers = {output: node for node in graph.node for output in node.output}
    found, waiting = set(), list(names)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting.extend(makers[each].input if each in makers else ())
    return found


def check_zeros(model: onnx.ModelProto, plain: onnx.ModelProto, *, exact: bool) -> None:
    """Confirm that weights are zero in the file where they are zero in the plain model; `exact`: that all bits are."""
    found = {tensor.name: tensor for tensor in restore(model).graph.initializer}
    for tensor in plain.graph.initializer:
        if tensor.name not in found:
            raise VerificationError(f"{tensor.name!r} cannot be read back from the file: report this with the model")
        if found[tensor.name] == tensor:
            continue
        ours, theirs = numpy_helper.to_array(found[tensor.name]), numpy_helper.to_array(tensor)
        if exact and ours.tobytes() != theirs.tobytes():
            raise VerificationError(f"{tensor.name!r} is not stored bit by bit: report this with the model")
        if ours.shape != theirs.shape or (theirs.dtype.kind == "f" and np.any(ours[theirs == 0] != 0)):
            raise VerificationError(
                f"{tensor.name!r} has weights where the source has zeros: report this with the model"
            )


def check_rebuilt(model: onnx.ModelProto) -> None:
    """Let ONNX Runtime rebuild the encoded tensors, and nothing else, and compare them with our own decoding."""
    names = list(metadata_of(model).get("tensors", {}))
    plain = {tensor.name: tensor for tensor in restore(model).graph.initializer}
    session = open_session(_only_rebuilding(model, names)) if names else None
    for name, array in zip(names, run_session(session, {}) if session else [], strict=True):
        ours = numpy_helper.to_array(plain[name])
        if ours.dtype != array.dtype or not np.array_equal(ours, array, equal_nan=ours.dtype.kind == "f"):
            raise VerificationError(f"ONNX Runtime rebuilds {name!r} otherwise than we do: report this with the model")


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
    """Confirm that each weight is zero in the plain model where it is zero in the network."""
    for tensor in plain.graph.initializer:
        weight = weights.get(tensor.name.removesuffix(".T"))
        if weight is None or weight.ndim < 2 or weight.dtype.kind != "f":
            continue
        weight = weight.T if tensor.name.endswith(".T") else weight
        array = numpy_helper.to_array(tensor)
        # Recurrent layers stand in another order of gates and with an axis for the direction: the zeros are counted.
        alive = np.any(array[weight == 0] != 0) if array.shape == weight.shape else False
        if alive or np.count_nonzero(array) > np.count_nonzero(weight) * (array.size / weight.size):
            raise VerificationError(f"{tensor.name!r} lost its zeros on the way to ONNX: report this with the model")


def check_file(path: Path, inputs: Sequence[Inputs], expected: Sequence[Sequence[Array]], tolerance: float) -> float:
    """Check a file in all respects, and give the largest difference of its outputs from those expected."""
    model = onnx.load(path)
    check_valid(model)
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        session = open_session(path, optimized)
        check_folded(onnx.load(optimized), model)
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
    """Run a model on inputs, and give the largest difference of its outputs from those expected."""
    pairs = zip(inputs, expected, strict=True)
    return max((largest_difference(run_session(session, each), wanted) for each, wanted in pairs), default=0.0)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
