"""The stage `export`: the network of a run, or any ONNX file → an ONNX file with its zeros left out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from rigl_compress.core.errors import InputError, did_you_mean, first_line
from rigl_compress.exporters.onnx_export import (
    ExportedModel,
    Layout,
    PlainExport,
    check_target,
    plain_export,
    reencode,
)
from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.exporters.reference_outputs import named_inputs
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.layer_flops import FlopReport
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.metrics import metric_of
from rigl_compress.pipeline.npz_inputs import read_inputs
from rigl_compress.pipeline.workspace import Run, locked_for
from rigl_compress.runtime.kernel_library import kernels_library
from rigl_compress.runtime.sparse_runtime_export import TARGET, export_sparse_runtime, refuse_rewritten

NETWORKS = ("auto", "trained", "pruned", "dense")
ABOUT_DENSE = "the same network with all of its weights, as before training: for size and speed, not for its answers"
PLAIN = "onnx"
TARGETS = (PLAIN, TARGET)


@dataclass(frozen=True)
class ExportConfig:
    """How to export. `network`: of a run, "trained", "pruned", or "auto" for the pruned one where there is one.

    "dense" is the network as before training, without any zero: what sparse ones are compared with.

    `target`: "onnx" for any ONNX Runtime, or "sparse-runtime" for one that registers our operators, with
    weights in their format.
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
    """Export a run folder or an ONNX file; without `write` everything is done and checked, and no file is kept."""
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
        raise InputError(f"{source} is an ONNX file, whose graph is not changed: leave out --keep-batch-norm")
    inputs = read_inputs(config.inputs)
    if config.target == TARGET:
        return export_sparse_runtime(source, path, overwrite=config.overwrite, inputs=inputs)
    refuse_rewritten(source)
    return reencode(source, path, config.layout, overwrite=config.overwrite, inputs=inputs)


def library_for(exported: ExportedModel) -> Path | None:
    """Return the library that a host needs for a file: none for one that any ONNX Runtime opens."""
    return kernels_library() if exported.metadata.get("target") == TARGET else None


def export_run(run: Run, path: Path, config: ExportConfig) -> ExportedModel:
    """Export the network of a run, with what is known about it in the file's metadata."""
    return export_layouts(run, config, {path: config.layout})[0]


def export_layouts(run: Run, config: ExportConfig, layouts: Mapping[Path, Layout]) -> list[ExportedModel]:
    """Export the network of a run in several layouts, by file; the network itself goes through the exporter once."""
    targets = [check_target(path, overwrite=config.overwrite) for path in layouts]
    file = network_file(run, config.network)
    dense = config.network == "dense"
    model = without_zeros(SparseModel.load(file)) if dense else SparseModel.load(file)
    facts = {**(_dense_facts(run, model) if dense else facts_of(run, model)), "source_sha256": sha256_of(file)}
    example = _example(model, config.inputs)
    plain = plain_export(model.build(), example, fold_batch_norm=not config.keep_batch_norm)
    named = [replace(layout, facts=facts) for layout in layouts.values()]
    write = _write_sparse_runtime(example) if config.target == TARGET else PlainExport.write
    return [write(plain, path, layout) for path, layout in zip(targets, named, strict=True)]


def _write_sparse_runtime(example: torch.Tensor) -> Callable[[PlainExport, Path, Layout], ExportedModel]:
    """Return a function that writes a plain file first, compared with the network, then the rewritten one."""
    inputs = {name: each.numpy() for name, each in named_inputs([example]).items()}

    def write(plain: PlainExport, path: Path, layout: Layout) -> ExportedModel:
        with TemporaryDirectory() as folder:
            source = plain.write(Path(folder) / "plain.onnx", layout).path
            return export_sparse_runtime(source, path, overwrite=True, inputs=inputs, facts=layout.facts)

    return write


def network_file(run: Run, network: str) -> Path:
    """Return the file of a network of a run."""
    if network not in NETWORKS:
        raise InputError(f"no network {network!r} in a run: {did_you_mean(network, NETWORKS)}")
    if network == "pruned" and not run.pruned_file.exists():
        raise InputError(f"{run.path} was not pruned: use `rigl-compress prune {run.path}`")
    if network == "dense":
        return _initial_file(run)
    if network == "trained" or not run.pruned_file.exists():
        run.model()  # raises for a run that is not finished
        return run.model_file
    return run.pruned_file


def _initial_file(run: Run) -> Path:
    if not run.initial_file.exists():
        raise InputError(f"{run.path} has no {run.initial_file.name}, the weights before training: train it again")
    return run.initial_file


def without_zeros(model: SparseModel) -> SparseModel:
    """Return a network without a zero among its parameters: a run may start from sparse weights, and biases at zero."""
    generator, parameters = torch.Generator().manual_seed(0), dict(model.build().named_parameters())
    filled = {name: _filled(model.weights[name], generator) for name in parameters}
    full = Topology.full({layer.name: layer.shape for layer in model.topology.layers})
    return replace(model, weights={**model.weights, **filled}, topology=full)


def _filled(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Replace zeros by random values as large as the other weights."""
    scale = weight.float().square().mean().sqrt().clamp(min=1e-3)
    drawn = torch.rand(weight.shape, generator=generator) - 0.5
    drawn = (drawn + 0.5 * torch.where(drawn < 0, -1, 1)) * scale  # of either sign, none of them near zero
    return torch.where(weight == 0, drawn.to(weight.dtype), weight)


def _dense_facts(run: Run, model: SparseModel) -> dict[str, Any]:
    flops = _flops(model)
    return {"recipe": run.result()["recipe"], "sparsity": 0.0, "flops": round(flops.sparse), "about": ABOUT_DENSE}


def facts_of(run: Run, model: SparseModel) -> dict[str, Any]:
    """Return the metadata of a network: its origin, quality and costs."""
    result = run.result()
    flops = _flops(model)
    return {
        "recipe": result["recipe"],
        "method": result["method"],
        "sparsity": round(model.topology.sparsity, 6),
        "flops": round(flops.sparse),
        **{key: result[key] for key in ("left_dense", "preprocessing") if result.get(key)},
        **_quality(result),
    }


def _flops(model: SparseModel) -> FlopReport:
    """Count the FLOPs of a network; a damaged file can declare inputs that its weights do not take."""
    network, example = model.build(), model.spec.example()
    try:
        return count_flops(network, example, model.topology)
    except RuntimeError as error:
        taken = f"does not take inputs of shape {tuple(example.shape[1:])}"
        raise InputError(
            f"model {model.spec.name!r} {taken} ({first_line(error)}): its file is damaged, train it again"
        ) from error


def _quality(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the accuracy of a classifier, or another metric under its own name.

    >>> _quality({"final_error": 1.5}), _quality({"metric": "bpc", "final_bpc": 2.0})
    ({'accuracy': 98.5}, {'bpc': 2.0})
    """
    metric = metric_of(result)
    final = result[f"final_{metric.name}"]
    return {"accuracy": round(100 - final, 4)} if metric.name == "error" else {metric.name: round(final, 4)}


def _example(model: SparseModel, inputs: Path | None) -> torch.Tensor:
    """Return inputs for the comparison of outputs: the user's if given."""
    real = read_inputs(inputs)
    if real is not None:
        return torch.from_numpy(next(iter(real.values())))
    return model.spec.example()
