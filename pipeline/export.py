"""The stage `export`: the network of a run, or any ONNX file → an ONNX file with its zeros left out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rigl_compress.exporters.export import ExportedModel, Layout, check_target, export_onnx, reencode
from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.exporters.trials import named_inputs
from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.flops import count_flops
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.inputs_file import read_inputs
from rigl_compress.pipeline.train.metrics import metric_of
from rigl_compress.pipeline.workspace import Run, locked_for
from rigl_compress.runtime.export import TARGET, export_sparse_runtime, refuse_rewritten
from rigl_compress.runtime.library import kernels_library

NETWORKS = ("auto", "trained", "pruned")
PLAIN = "onnx"
TARGETS = (PLAIN, TARGET)


@dataclass(frozen=True)
class ExportConfig:
    """How to export. `network`: of a run, "trained", "pruned", or "auto" for the pruned one where there is one.

    `target`: "onnx" for any ONNX Runtime, or "sparse-runtime" for one that registers our operators, whose weights have
    a form of their own.
    """

    layout: Layout = field(default_factory=Layout)
    network: str = "auto"
    keep_batch_norm: bool = False
    overwrite: bool = False
    inputs: Path | None = None
    target: str = PLAIN

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError(f"no target {self.target!r}: {did_you_mean(self.target, TARGETS)}")
        if self.target == TARGET and self.layout != Layout():
            raise InputError(
                f"--target {TARGET} writes weights as the sparse kernels read them: leave out --encoding and --values"
            )


def export(source: Path, path: Path, config: ExportConfig, *, write: bool = True) -> ExportedModel:
    """Export a run folder or an ONNX file; without `write` everything is done and checked, and no file stays."""
    if write:
        with locked_for(path):
            return _export(source, path, config)
    check_target(path, overwrite=config.overwrite)
    with TemporaryDirectory() as folder:
        return replace(_export(source, Path(folder) / path.name, config), path=path)


def _export(source: Path, path: Path, config: ExportConfig) -> ExportedModel:
    if source.is_dir():
        return export_run(Run.open(source), path, config)
    if config.network != "auto":
        raise InputError(f"{source} is not a run folder: --network chooses among the networks of a run")
    if config.keep_batch_norm:
        raise InputError(f"{source} is an ONNX file, whose graph stays as it is: leave out --keep-batch-norm")
    inputs = read_inputs(config.inputs)
    if config.target == TARGET:
        return export_sparse_runtime(source, path, overwrite=config.overwrite, inputs=inputs)
    refuse_rewritten(source)
    return reencode(source, path, config.layout, overwrite=config.overwrite, inputs=inputs)


def library_for(exported: ExportedModel) -> Path | None:
    """Give the library that a host needs for a file: none for one that any ONNX Runtime opens."""
    return kernels_library() if exported.metadata.get("target") == TARGET else None


def export_run(run: Run, path: Path, config: ExportConfig) -> ExportedModel:
    """Export the network of a run, with what is known about it in the file's metadata."""
    file = network_file(run, config.network)
    model = SparseModel.load(file)
    facts = {**facts_of(run, model), "source_sha256": sha256_of(file)}
    example = _example(model, config.inputs)
    if config.target == TARGET:
        return _for_sparse_runtime(model, example, path, config, facts)
    return _written(model, example, path, config, facts)


def _written(
    model: SparseModel, example: torch.Tensor, path: Path, config: ExportConfig, facts: Mapping[str, Any]
) -> ExportedModel:
    return export_onnx(
        model.build(),
        example,
        path,
        encoding=config.layout.encoding,
        values=config.layout.values,
        fold_batch_norm=not config.keep_batch_norm,
        overwrite=config.overwrite,
        facts=facts,
    )


def _for_sparse_runtime(
    model: SparseModel, example: torch.Tensor, path: Path, config: ExportConfig, facts: Mapping[str, Any]
) -> ExportedModel:
    """Export as for any runtime first, which is compared with the network; the rewritten file is compared with that."""
    check_target(path, overwrite=config.overwrite)
    with TemporaryDirectory() as folder:
        plain = _written(model, example, Path(folder) / "plain.onnx", replace(config, target=PLAIN), facts).path
        inputs = {name: each.numpy() for name, each in named_inputs([example]).items()}
        return export_sparse_runtime(plain, path, overwrite=config.overwrite, inputs=inputs, facts=facts)


def network_file(run: Run, network: str) -> Path:
    """Find the file of the network that is asked for."""
    if network not in NETWORKS:
        raise InputError(f"no network {network!r} in a run: {did_you_mean(network, NETWORKS)}")
    if network == "pruned" and not run.pruned_file.exists():
        raise InputError(f"{run.path} was not pruned: do it with `rigl-compress prune {run.path}`")
    if network == "trained" or not run.pruned_file.exists():
        run.model()  # says how to go on with a run that is not finished
        return run.model_file
    return run.pruned_file


def facts_of(run: Run, model: SparseModel) -> dict[str, Any]:
    """Give what people want to know about a network: where it comes from, what it can, and what it costs."""
    result = run.result()
    flops = count_flops(model.build(), model.spec.example(), model.topology)
    return {
        "recipe": result["recipe"],
        "method": result["method"],
        "sparsity": round(model.topology.sparsity, 6),
        "flops": round(flops.sparse),
        **({"left_dense": result["left_dense"]} if result.get("left_dense") else {}),
        **_quality(result),
    }


def _quality(result: Mapping[str, Any]) -> dict[str, float]:
    """Give the accuracy of what answers with classes, and what else is measured under its own name.

    >>> _quality({"final_error": 1.5}), _quality({"metric": "bpc", "final_bpc": 2.0})
    ({'accuracy': 98.5}, {'bpc': 2.0})
    """
    metric = metric_of(result)
    final = result[f"final_{metric.name}"]
    return {"accuracy": round(100 - final, 4)} if metric.name == "error" else {metric.name: round(final, 4)}


def _example(model: SparseModel, inputs: Path | None) -> torch.Tensor:
    """Give inputs to compare the outputs with: real ones if there are any."""
    real = read_inputs(inputs)
    if real is not None:
        return torch.from_numpy(next(iter(real.values())))
    return model.spec.example()
