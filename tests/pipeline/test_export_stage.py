"""The stage `export`: runs, pruned runs and files."""

import hashlib
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from tiny import Trainer, untouched

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.onnx_export import Layout
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.export.stage import ExportConfig, export, library_for
from rigl_compress.pipeline.npz_inputs import read_inputs
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.workspace import Run
from rigl_compress.runtime import sparse_runtime_export as sparse_export
from rigl_compress.runtime.kernel_library import kernels_library, unavailable_reason
from rigl_compress.runtime.session import InferenceSession


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    """A finished run that is not pruned. No test may change it."""
    return Trainer(tmp_path_factory.mktemp("runs"), data_dir)("train.epochs=1", "sparsity.sparsity=0.95")


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    """The same run, pruned. No test may change it."""
    run = Trainer(tmp_path_factory.mktemp("runs"), data_dir)("train.epochs=1", "sparsity.sparsity=0.95")
    prune_run(run)
    return run


def assert_same_answers(file: Path, model: SparseModel) -> None:
    x = torch.rand(5, 1, 28, 28)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    answers = session.run(None, {"input": x.numpy()})[0]
    assert np.allclose(answers, model.build()(x).detach().numpy(), atol=1e-5)


def test_a_trained_run(trained: Run, tmp_path: Path) -> None:
    exported = export(trained.path, tmp_path / "net.onnx", ExportConfig(Layout("compact")))
    model = trained.model()
    assert_same_answers(exported.path, model)
    rows = {row.name: row for row in exported.tensors}
    for layer in model.topology.layers:
        assert rows[layer.name].nonzeros <= layer.active
    result = trained.result()
    assert exported.metadata["recipe"] == "tiny"
    assert exported.metadata["method"] == "rigl"
    assert exported.metadata["sparsity"] == round(model.topology.sparsity, 6)
    assert exported.metadata["flops"] == round(result["inference_flops"]["sparse"])
    assert exported.metadata["accuracy"] == round(100 - result["final_error"], 4)
    assert exported.metadata["source_sha256"] == hashlib.sha256(trained.model_file.read_bytes()).hexdigest()


def test_a_pruned_run(pruned: Run, tmp_path: Path) -> None:
    auto = export(pruned.path, tmp_path / "auto.onnx", ExportConfig(Layout("compact")))
    assert_same_answers(auto.path, SparseModel.load(pruned.pruned_file))
    rows = {row.name: row for row in auto.tensors}
    assert "fc1.index" not in rows  # it reads all pixels: to pick those that it needs would take longer
    assert rows["fc1.weight"].shape[1] == 784 > auto.metadata["pruned_shapes"]["fc1.weight"][1]
    whole = export(pruned.path, tmp_path / "whole.onnx", ExportConfig(Layout("dense"), network="trained"))
    small = export(pruned.path, tmp_path / "small.onnx", ExportConfig(Layout("dense"), network="pruned"))
    assert auto.bytes < small.bytes < whole.bytes
    assert auto.metadata["source_sha256"] == small.metadata["source_sha256"] != whole.metadata["source_sha256"]


def test_the_dense_network_of_a_run(pruned: Run, tmp_path: Path) -> None:
    """The same shapes as what was trained, no zero anywhere, and no claim to its accuracy."""
    whole = export(pruned.path, tmp_path / "whole.onnx", ExportConfig(Layout("dense"), network="trained"))
    dense = export(pruned.path, tmp_path / "dense.onnx", ExportConfig(Layout("dense"), network="dense"))
    assert [(row.name, row.shape) for row in dense.tensors] == [(row.name, row.shape) for row in whole.tensors]
    assert all(row.nonzeros == row.total for row in dense.tensors)
    assert "accuracy" not in dense.metadata
    assert dense.metadata["flops"] == round(pruned.result()["inference_flops"]["dense"])


def test_a_dense_network_is_dense_where_a_run_starts_from_sparse_weights(trained: Run, trainer: Trainer) -> None:
    start = (f'start.run="{trained.path}"', 'start.weights="final"', 'start.topology="end"')
    run = trainer("train.epochs=1", *start, run="second")
    assert (SparseModel.load(run.initial_file).weights["fc1.weight"] == 0).any()
    dense = export(run.path, run.path / "net.onnx", ExportConfig(Layout("dense"), network="dense"))
    assert all(row.nonzeros == row.total for row in dense.tensors)


def test_a_run_without_its_initial_weights_has_no_dense_network(trainer: Trainer, tmp_path: Path) -> None:
    run = trainer("train.epochs=1")
    run.initial_file.unlink()
    with pytest.raises(InputError, match=r"has no initial.safetensors, the weights before training: train it again"):
        export(run.path, tmp_path / "net.onnx", ExportConfig(network="dense"))


def test_a_file_that_was_exported(pruned: Run, tmp_path: Path) -> None:
    dense = export(pruned.path, tmp_path / "dense.onnx", ExportConfig(Layout("dense")))
    small = export(dense.path, tmp_path / "small.onnx", ExportConfig(Layout("compact", "fp16")))
    assert small.bytes < dense.bytes / 4
    assert small.metadata["recipe"] == "tiny"


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
@pytest.mark.parametrize("network", ["trained", "pruned"])
def test_a_run_for_the_sparse_runtime(
    pruned: Run, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse_export, "runs_faster", lambda *_: True)
    np.savez(tmp_path / "x.npz", anything=np.full((3, 1, 28, 28), 0.5, dtype=np.float32))
    config = ExportConfig(network=network, inputs=tmp_path / "x.npz", target="sparse-runtime")
    written = export(pruned.path, tmp_path / "fast.onnx", config)
    file = {"trained": pruned.model_file, "pruned": pruned.pruned_file}[network]
    model, x = SparseModel.load(file), torch.rand(5, 1, 28, 28)
    session = InferenceSession(written.path)
    assert len(session.sparse_layers) == 3
    answers = session.run(None, {"input": x.numpy()})[0]
    assert np.allclose(answers, model.build()(x).detach().numpy(), atol=1e-5)
    assert written.metadata["recipe"] == "tiny"
    assert written.metadata["source_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert library_for(written) == kernels_library()
    (tmp_path / "x.npz").unlink()
    with (
        untouched(tmp_path),
        pytest.raises(InputError, match="or replace it with overwrite=True"),
    ):
        export(pruned.path, tmp_path / "fast.onnx", ExportConfig(target="sparse-runtime"))


def test_a_dry_run_writes_nothing(trained: Run, tmp_path: Path) -> None:
    with untouched(tmp_path), untouched(trained.path):
        exported = export(trained.path, tmp_path / "net.onnx", ExportConfig(), write=False)
    assert exported.path == tmp_path / "net.onnx"
    assert exported.bytes > 0


def test_real_inputs(trained: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input=np.zeros((3, 1, 28, 28), dtype=np.float32))
    export(trained.path, tmp_path / "net.onnx", ExportConfig(inputs=tmp_path / "x.npz"))
    export(tmp_path / "net.onnx", tmp_path / "again.onnx", ExportConfig(inputs=tmp_path / "x.npz"))


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_inputs_that_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz is not an \.npz file of arrays"):
        read_inputs(tmp_path / "x.npz")


def test_inputs_of_another_shape(trained: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input=np.zeros((3, 7), dtype=np.float32))
    with untouched(tmp_path), pytest.raises(InputError, match="the network cannot be called with an example input"):
        export(trained.path, tmp_path / "net.onnx", ExportConfig(inputs=tmp_path / "x.npz"))


def test_what_does_not_go_together(trained: Run, tmp_path: Path) -> None:
    file = export(trained.path, tmp_path / "net.onnx", ExportConfig()).path
    cases = {
        "was not pruned: use `rigl-compress prune": (trained.path, ExportConfig(network="pruned")),
        "no network 'smallest' in a run": (trained.path, ExportConfig(network="smallest")),
        "--network chooses among the networks of a run": (file, ExportConfig(network="pruned")),
        "leave out --keep-batch-norm": (file, ExportConfig(keep_batch_norm=True)),
        "is not a run folder": (tmp_path, ExportConfig()),
        "does not exist: pass a run folder or an ONNX file": (tmp_path / "none", ExportConfig()),
    }
    for message, (source, config) in cases.items():
        with untouched(tmp_path), pytest.raises(InputError, match=message):
            export(source, tmp_path / "other.onnx", config)


def test_a_run_that_is_not_finished(trained: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_bytes(trained.recipe_file.read_bytes())
    with untouched(tmp_path), pytest.raises(InputError, match="is not finished: resume with"):
        export(tmp_path / "run", tmp_path / "net.onnx", ExportConfig())
