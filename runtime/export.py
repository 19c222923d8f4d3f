"""Write a model for other hosts: with our operators in it, checked before the file gets its name."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort

from rigl_compress.exporters import verify
from rigl_compress.exporters.export import ExportedModel, check_target
from rigl_compress.exporters.onnx_file import LARGEST_FILE, load_model, sha256_of
from rigl_compress.exporters.sparsify import metadata_of, write_metadata
from rigl_compress.exporters.trials import Inputs, Trial, random_trial, trial_of
from rigl_compress.exporters.values import VALUES
from rigl_compress.models.artifacts import FORMAT, atomic_path
from rigl_compress.models.errors import InputError
from rigl_compress.runtime.contents import LAYERS, read_contents, written_about
from rigl_compress.runtime.costs import gains, saving_together
from rigl_compress.runtime.library import why_not
from rigl_compress.runtime.rewrite import DOMAIN, DOMAIN_VERSION, Rewritten, rewrite, sparse_outputs
from rigl_compress.runtime.session import register

TARGET = "sparse-runtime"
# What an earlier export wrote about weights that are not written that way here.
_OUTDATED = ("tensors", "encoding", "values")


def export_sparse_runtime(
    source: Path | str,
    path: Path | str,
    *,
    overwrite: bool = False,
    inputs: Inputs | None = None,
    facts: Mapping[str, Any] | None = None,
) -> ExportedModel:
    """Rewrite an ONNX file to sparse operators where that gains, for hosts that register `kernels_library()`.

    The file appears under its name only after ONNX Runtime opened it with our library and gave the source's outputs.

    >>> import tempfile, torch, rigl_compress
    >>> layer = torch.nn.Linear(1000, 1000)
    >>> _ = layer.weight.data.masked_fill_(torch.rand(1000, 1000) < 0.95, 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = rigl_compress.export_onnx(layer, torch.rand(1, 1000), f"{folder}/layer.onnx")
    ...     written = export_sparse_runtime(f"{folder}/layer.onnx", f"{folder}/fast.onnx")
    >>> written.tensors[0].name, written.tensors[0].encoding
    ('weight', 'SparseMatMul')
    """
    reason = why_not()
    if reason:
        raise InputError(f"--target {TARGET} needs the sparse kernels; {reason}")
    found = Path(source)
    model = load_model(found)
    _refuse_rewritten(model, found)
    target = check_target(Path(path), overwrite=overwrite, source=found)
    session = verify.open_session(found)  # before anything is inferred of a graph that is none
    rewritten = _rewritten(model, found)
    if not rewritten.layers:
        raise InputError(
            f"no layer of {found} would be faster on sparse kernels, as all are too small or have too few zeros: "
            "train with more sparsity, or leave out --target"
        )
    trial = random_trial(session, found) if inputs is None else trial_of(session, inputs)
    earlier = {key: value for key, value in metadata_of(model).items() if key not in _OUTDATED}
    write_metadata(
        rewritten.model, {**earlier, "source_sha256": sha256_of(found), **(facts or {}), **_written(rewritten)}
    )
    return _write_checked(rewritten.model, target, trial)


def _rewritten(model: onnx.ModelProto, path: Path) -> Rewritten:
    try:
        return rewrite(model, gains, together=saving_together)
    except onnx.shape_inference.InferenceError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"the shapes of {path} contradict each other ({reason}): export it again") from None


def refuse_rewritten(path: Path) -> None:
    """Refuse a file with sparse operators as a source: there is no way back from them."""
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
        LAYERS: written_about(rewritten.layers),
    }


def _write_checked(model: onnx.ModelProto, path: Path, trial: Trial) -> ExportedModel:
    if model.ByteSize() > LARGEST_FILE:
        raise InputError(f"{path} would be larger than 2 GiB, more than an ONNX file can hold: export a smaller model")
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        difference = _check_file(temporary, trial)
    return replace(read_contents(path), difference=difference)


def _check_file(path: Path, trial: Trial) -> float:
    """Open the file as another host would, and compare."""
    verify.check_valid(onnx.load(path))
    options = ort.SessionOptions()
    register(options)
    difference = verify.difference_of(verify.session_of(path, options), trial.inputs, trial.outputs)
    allowed = VALUES["fp32"].tolerance
    if not difference <= allowed:
        raise verify.VerificationError(
            f"the outputs differ by {difference:.2g} of the largest, {allowed:.2g} is allowed: "
            "report this with the model, and leave out --target"
        )
    return difference
