"""Paths that a run may write: nothing that it reads is lost, and what cannot be written is said first."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_layers import correlated, perceptron, saved

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.onnx_pruning.sparsify_onnx import sparsify_curve
from rigl_compress.onnx_pruning.written_paths import check_page


@pytest.fixture
def files(tmp_path: Path) -> Path:
    saved(perceptron(), tmp_path / "plain.onnx")
    options = {"save_as_external_data": True, "location": "net.bin", "size_threshold": 0}
    onnx.save(perceptron(), tmp_path / "net.onnx", **options)
    np.savez(tmp_path / "data.npz", x=correlated(40, 32))
    return tmp_path


@pytest.mark.parametrize("name", ["net.onnx", "net.bin", "data.npz"])
def test_nothing_that_is_read_is_overwritten(files: Path, name: str) -> None:
    before = {path.name: path.read_bytes() for path in files.iterdir()}
    with pytest.raises(InputError, match="choose another name"):
        rc.sparsify_onnx(files / "net.onnx", files / name, calibration=files / "data.npz", overwrite=True, timing=None)
    with pytest.raises(InputError, match="choose another name"):
        check_page(files / name, [files / "small.onnx"], files / "net.onnx", files / "data.npz")
    assert {path.name: path.read_bytes() for path in files.iterdir()} == before


def test_pages_that_cannot_be_written(files: Path) -> None:
    (files / "folder").mkdir()
    for page, message in (
        (files / "folder", "is a folder, expected a file"),
        (files / "folder" / ".." / "small.onnx", "is the pruned model, too"),
        (files / "data.npz" / "page.html", "is not a folder"),
    ):
        with pytest.raises(InputError, match=message):
            check_page(page, [files / "small.onnx"], files / "net.onnx")
    check_page(files / "new" / "page.html", [files / "small.onnx"], files / "net.onnx")


def test_outputs_that_cannot_be_written(files: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        rc.sparsify_onnx(files / "net.onnx", files / "data.npz" / "small.onnx", timing=None)


def test_a_curve_names_each_sparsity_once(files: Path) -> None:
    curve = sparsify_curve(
        files / "net.onnx", files / "small.onnx", (0.4, 0.5, 0.4), SparsifyConfig(timing=None), lambda *_: None
    )
    with pytest.raises(InputError, match=r"small-0\.4\.onnx: name each sparsity once"):
        next(curve)
    assert not list(files.glob("small*"))
