"""Connections per pixel, read from the graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx_graphs import model, node, weight
from tiny import Trainer

from rigl_compress.exporters.input_pixel_counts import pixel_counts
from rigl_compress.exporters.onnx_costs import stored_arrays
from rigl_compress.exporters.restore import restore
from rigl_compress.pipeline.export.stage import ExportConfig, export_run
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.run_inspection import pixel_map


def counts(made: onnx.ModelProto) -> list[list[int]] | None:
    found = pixel_counts(made, dict(stored_arrays(made)))
    return None if found is None else found.tolist()


@pytest.mark.parametrize("network", ["trained", "pruned"])
def test_a_run_and_its_file_agree(network: str, trainer: Trainer, tmp_path: Path) -> None:
    run = trainer("train.epochs=1")
    prune_run(run)
    made = export_run(run, tmp_path / "net.onnx", ExportConfig(network=network))
    expected = pixel_map(run.model(), run.topology("end"))
    assert expected is not None
    found = counts(restore(onnx.load(made.path)))
    assert found is not None
    # Connections into neurons that are removed are not in the pruned file.
    assert found == expected.tolist() if network == "trained" else (torch.tensor(found) <= expected).all()


def test_a_run_of_pixels_is_followed() -> None:
    constants = {"start": np.array([1]), "end": np.array([3]), "axis": np.array([1]), "w": weight(5, 2, zeros=3)}
    nodes = [node("Flatten", "x", "f"), node("Slice", "f start end axis", "s"), node("Gemm", "s w", "y", transB=1)]
    assert counts(model(nodes, {"x": ("n", 1, 2, 2)}, constants)) == [[0, 3], [4, 0]]


def test_a_selection_of_pixels_is_followed() -> None:
    constants = {"index": np.array([0, 3]), "w": weight(5, 2, zeros=3)}
    nodes = [
        node("Flatten", "x", "flat"),
        node("Gather", "flat index", "few", axis=1),
        node("Gemm", "few w", "y", transB=1),
    ]
    assert counts(model(nodes, {"x": ("batch", 1, 2, 2)}, constants)) == [[3, 0], [0, 4]]


@pytest.mark.parametrize(
    ("nodes", "image", "kernel"),
    [
        ([node("Conv", "x w", "y")], (1, 1, 4, 4), (2, 1, 3, 3)),  # every pixel alike
        ([node("Flatten", "x", "flat"), node("MatMul", "flat w", "y")], (1, 3, 2, 2), (12, 5)),  # colours
        ([node("MatMul", "x w", "y")], (1, 16), (16, 5)),  # no image
        (
            [node("Flatten", "x", "flat"), node("MatMul", "flat w", "z"), node("Add", "z flat", "y")],
            (1, 1, 2, 2),
            (4, 4),
        ),
    ],
)
def test_no_map(nodes: list[onnx.NodeProto], image: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    assert counts(model(nodes, {"x": image}, {"w": weight(*kernel)})) is None
