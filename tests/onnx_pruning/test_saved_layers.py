"""Interrupted runs of `sparsify`: what goes on, and what begins anew because other settings decide it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_layers import correlated, perceptron, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning import density_plan
from rigl_compress.onnx_pruning.sparsify_report import SparsifyReport


@pytest.fixture
def files(tmp_path: Path) -> Path:
    saved(perceptron(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(160, 32))
    return tmp_path


def run(folder: Path, **settings: Any) -> SparsifyReport:
    given = {"calibration": folder / "data.npz", "timing": None, **settings}
    return rc.sparsify_onnx(folder / "net.onnx", folder / "small.onnx", **given)


def interrupted(folder: Path, **settings: Any) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done and what.startswith("pruning"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(folder, listener=stop, **settings)


def resumed(report: SparsifyReport) -> bool:
    return any(note.startswith("resumed") for note in report.notes)


@pytest.mark.parametrize(
    "others", [{"encoding": "bitmask"}, {"values": "fp16"}, {"keep_dead_channels": True}, {"budget": "size=14kB"}]
)
def test_densities_of_a_size_are_chosen_anew_for_another_file(others: dict[str, Any], files: Path) -> None:
    interrupted(files, budget="size=15kB")
    assert not resumed(run(files, **{"budget": "size=15kB", **others}))


@pytest.mark.parametrize("wanted", [{"budget": "size=15kB"}, {"budget": "flops=6K"}, {"sparsity": 0.5}])
def test_what_decides_no_density_resumes(wanted: dict[str, Any], files: Path) -> None:
    interrupted(files, **wanted)
    assert resumed(run(files, threads=2, **wanted))


def test_external_data_that_changed_begin_anew(files: Path) -> None:
    def save(factor: float) -> None:
        model = perceptron()
        weights = np.frombuffer(model.graph.initializer[0].raw_data, np.float32)
        model.graph.initializer[0].raw_data = (np.float32(factor) * weights).tobytes()
        onnx.save(model, files / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)

    save(1)
    interrupted(files)
    (files / "net.bin").unlink()
    save(2)
    assert not resumed(run(files))


def test_errors_are_measured_once_for_several_budgets(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be met"):
        run(files, budget="size=1kB")
    monkeypatch.setattr(density_plan, "ErrorProbe", None)
    assert run(files, budget="size=15kB").sparsity > 0.3


def test_errors_of_other_samples_are_measured_anew(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be met"):
        run(files, budget="size=1kB")
    monkeypatch.setattr(density_plan, "ErrorProbe", None)
    with pytest.raises(TypeError):
        run(files, budget="size=15kB", samples=80)
