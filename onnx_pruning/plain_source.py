"""The source as a plain model, and what can be refused before the work."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_file import delete
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import check_opset, lift_constants
from rigl_compress.onnx_pruning.one_shot_pruning import prune_by_magnitude
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.onnx_pruning.pruned_model import PrunedModel
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.sparse_runtime_export import TARGET, rewritten_where_faster

OVERRIDABLE = 4  # version of the format: before it, constants are inputs too, and runtimes take no others for them
_WITHOUT_OPERATORS = ("dense", "sparse")  # encodings that need no operators to rebuild weights


def plain_source(model: onnx.ModelProto, path: Path, config: SparsifyConfig) -> onnx.ModelProto:
    """Return a model with all its weights as initializers; raise `InputError` if it cannot be written as wished."""
    _check_writable(model, path, config)
    plain = restore(model)
    lift_constants(plain)
    if plain.ir_version < OVERRIDABLE:
        _drop_constant_inputs(plain)
    return plain


def _check_writable(model: onnx.ModelProto, path: Path, config: SparsifyConfig) -> None:
    reason = unavailable_reason() if config.target == TARGET else ""
    if reason:
        raise InputError(f"--target {TARGET} needs the sparse kernels; {reason}")
    if config.target != TARGET and (config.encoding not in _WITHOUT_OPERATORS or config.values != "fp32"):
        check_opset(model, path)


def check_gain(
    config: SparsifyConfig,
    path: Path,
    plain: onnx.ModelProto,
    layers: Sequence[PrunableLayer],
    counts: Mapping[str, int],
) -> None:
    """Raise before layers are fitted if sparse operators would gain nothing: only the number of zeros matters."""
    if config.target == TARGET:
        trial = PrunedModel(plain)
        prune_by_magnitude(trial, layers, counts)
        rewritten_where_faster(trial.model(), path)


@contextmanager
def named(path: Path, temporary: Path) -> Iterator[None]:
    """Let errors about a temporary file name the user's."""
    try:
        yield
    except InputError as error:
        raise type(error)(str(error).replace(str(temporary), str(path))) from None


def _drop_constant_inputs(plain: onnx.ModelProto) -> None:
    """Drop the inputs that are constants, in place."""
    stored = {each.name for each in plain.graph.initializer}
    delete(plain.graph.input, lambda value: value.name in stored)
    plain.ir_version = OVERRIDABLE
