"""Export a model with sparse operators for other hosts, verified before the file is moved into place."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

from rigl_compress.core.artifacts import FORMAT, atomic_path
from rigl_compress.core.errors import InputError, one_line
from rigl_compress.exporters import verify
from rigl_compress.exporters.onnx_export import ExportedModel, check_target
from rigl_compress.exporters.onnx_file import LARGEST_FILE, load_model, sha256_of
from rigl_compress.exporters.ort_sessions import Inputs, open_session, session_options
from rigl_compress.exporters.reference_outputs import ReferenceRun, random_reference, session_reference
from rigl_compress.exporters.sparsify import metadata_of, write_metadata
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.runtime.cost_model import profitable_layers, runs_faster
from rigl_compress.runtime.file_contents import read_contents
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import DOMAIN, DOMAIN_VERSION, Rewritten, rewrite, sparse_outputs
from rigl_compress.runtime.session_options import register
from rigl_compress.runtime.sparse_layer_table import LAYERS, layer_metadata

TARGET = "sparse-runtime"
# Metadata of an earlier export that does not describe the packed weights.
_OUTDATED = ("tensors", "encoding", "values")


def export_sparse_runtime(
    source: Path | str,
    path: Path | str,
    *,
    overwrite: bool = False,
    inputs: Inputs | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ExportedModel:
    """Rewrite an ONNX file to sparse operators where these are faster, for hosts that register `kernels_library()`.

    The file is moved into place only after ONNX Runtime opened it with the library and produced the source's outputs.

    >>> import tempfile, torch, rigl_compress
    >>> layer = torch.nn.Linear(1000, 1000)
    >>> _ = layer.weight.data.masked_fill_(torch.rand(1000, 1000) < 0.95, 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = rigl_compress.export_onnx(layer, torch.rand(1, 1000), f"{folder}/layer.onnx")
    ...     written = export_sparse_runtime(f"{folder}/layer.onnx", f"{folder}/fast.onnx")
    >>> written.tensors[0].name, written.tensors[0].encoding
    ('weight', 'SparseMatMul')
    """
    reason = unavailable_reason()
    if reason:
        raise InputError(f"--target {TARGET} needs the sparse kernels; {reason}")
    found = Path(source)
    model = load_model(found)
    _refuse_rewritten(model, found)
    target = check_target(Path(path), overwrite=overwrite, source=found)
    session = open_session(found)  # before shape inference, which needs a valid graph
    rewritten = rewritten_where_faster(model, found)
    reference = random_reference(session, found) if inputs is None else session_reference(session, inputs)
    earlier = {key: value for key, value in metadata_of(model).items() if key not in _OUTDATED}
    write_metadata(
        rewritten.model, {**earlier, "source_sha256": sha256_of(found), **(facts or {}), **_written(rewritten)}
    )
    return _write_checked(rewritten.model, target, reference)


def rewritten_where_faster(model: onnx.ModelProto, path: Path) -> Rewritten:
    """Return a model with sparse operators; raise `InputError` if none would be faster."""
    try:
        found = rewrite(model, runs_faster, select=profitable_layers)
    except onnx.shape_inference.InferenceError as error:
        raise InputError(f"the shapes of {path} contradict each other ({one_line(error)}): export it again") from None
    if not found.layers:
        raise InputError(
            f"no layer of {path} would be faster on sparse kernels, all are too small or have too few zeros: "
            "train with more sparsity, or leave out --target"
        )
    return found


def refuse_rewritten(path: Path) -> None:
    """Raise an error if a source has sparse operators: they cannot be converted back."""
    _refuse_rewritten(load_model(path), path)


def _refuse_rewritten(model: onnx.ModelProto, path: Path) -> None:
    if sparse_outputs(model):
        raise InputError(
            f"{path} was written with --target {TARGET} and cannot be exported again: export what it was made from"
        )


def _written(rewritten: Rewritten) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": version("rigl-compress"),
        "target": TARGET,
        "operators": f"{DOMAIN} {DOMAIN_VERSION}",
        LAYERS: layer_metadata(rewritten.layers),
    }


def _write_checked(model: onnx.ModelProto, path: Path, reference: ReferenceRun) -> ExportedModel:
    if model.ByteSize() > LARGEST_FILE:
        raise InputError(f"{path} would be larger than 2 GiB, more than an ONNX file can hold: export a smaller model")
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        difference = _check_file(temporary, reference)
    return replace(read_contents(path), difference=difference)


def _check_file(path: Path, reference: ReferenceRun) -> float:
    """Open the file as another host does, and compare its outputs."""
    verify.check_valid(onnx.load(path))
    options = session_options()
    register(options)
    difference = verify.difference_of(open_session(path, options), reference.inputs, reference.outputs)
    allowed = VALUES["fp32"].tolerance
    if not difference <= allowed:
        raise verify.VerificationError(
            f"the outputs differ by {difference:.2g} of the largest, {allowed:.2g} is allowed: "
            "report this with the model, and leave out --target"
        )
    return difference
