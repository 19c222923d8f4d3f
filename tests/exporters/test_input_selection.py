"""Inputs that nothing needs: left out of a file where that is expected to save time, zeros where it is not."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.exporters import input_selection as selection
from rigl_compress.exporters.input_selection import (
    LARGE_BATCH,
    MARGIN,
    PRUNED_SHAPES,
    InputSelection,
    _time,
    choose_selections,
    fastest_inputs,
)
from rigl_compress.exporters.onnx_export import ExportedModel, Layout, reencode
from rigl_compress.exporters.restore import restore
from rigl_compress.models.layer_resizing import resized, selecting

BORDER = [*range(100), *range(700, 784)]


def scattered(total: int, kept: int) -> Tensor:
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[:kept].sort().values


def picking(layer: nn.Module, kept: Tensor) -> nn.Module:
    """A layer that picks some of its inputs."""
    return selecting(resized(layer, kept, None), kept)


def perceptron(dead: list[int], hidden: int = 300) -> nn.Module:
    """A pruned LeNet-300-100 that lost these pixels."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    mask = torch.rand(hidden, 784) < 0.1
    mask[:, dead] = False
    kept = [pixel for pixel in range(784) if pixel not in dead]
    mask[:, kept[0]] = mask[0, kept] = True  # nobody else dies
    topology = rc.Topology.from_masks({"1.weight": mask})
    topology.apply_to(model)
    return rc.prune_dead_neurons(model, topology, torch.rand(1, 1, 28, 28)).model


def operators(exported: ExportedModel) -> list[str]:
    return [node.op_type for node in restore(onnx.load(exported.path)).graph.node]


@pytest.mark.parametrize(
    ("encoding", "dead"), [("dense", [7, 400]), ("sparse", [*range(0, 100, 2)]), ("compact", [*range(0, 740, 2)])]
)
def test_a_perceptron_that_lost_pixels_reads_them_all(dead: list[int], encoding: str, tmp_path: Path) -> None:
    small = perceptron(dead)
    exported = rc.export_onnx(small, torch.rand(1, 1, 28, 28), tmp_path / "small.onnx", encoding=encoding)
    assert operators(exported) == ["Reshape", "Gemm", "Relu", "Gemm"]
    assert exported.metadata[PRUNED_SHAPES] == {"1.weight": [300, 784 - len(dead)]}
    x = torch.rand(3, 1, 28, 28)
    (found,) = ort.InferenceSession(exported.path).run(None, {"input": x.numpy()})
    with torch.no_grad():
        assert np.allclose(found, small(x).numpy(), atol=1e-5)
    assert small[1].weight.shape == (300, 784 - len(dead)), "the network itself must stay as it is"  # type: ignore[index]


def test_zeros_take_no_more_bytes_than_a_selection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of the pixels that are read is more than what zeros add to a sparse encoding."""
    small, example = perceptron(list(range(0, 740, 2))), torch.rand(1, 1, 28, 28)
    zeros = rc.export_onnx(small, example, tmp_path / "zeros.onnx", encoding="compact")
    monkeypatch.setattr(selection, "fastest_inputs", lambda reading: reading.kept)
    picked = rc.export_onnx(small, example, tmp_path / "picked.onnx", encoding="compact")
    assert "Gather" in operators(picked)
    index = next(row for row in picked.tensors if row.name == "1.index")
    assert (index.encoding, index.bytes < 2 * index.total) == ("steps", True)
    assert zeros.bytes <= picked.bytes


@pytest.mark.parametrize(
    ("layer", "shape", "kept", "expected"),
    [
        (nn.Linear(784, 300), (784,), scattered(784, 20), "Gather"),  # almost all are gone
        (nn.Linear(784, 300), (784,), torch.tensor([i for i in range(784) if i not in BORDER]), "Slice"),
        (nn.Linear(784, 300), (784,), torch.tensor([0, *range(150, 500)]), "Slice"),  # a few zeros among them
        (nn.Linear(784, 300), (784,), torch.tensor([0, *range(150, 500), 783]), ""),
        (nn.Conv2d(3, 32, 7), (3, 32, 32), torch.tensor([0, 2]), "Gather"),
        (nn.Conv2d(64, 32, 3), (64, 14, 14), scattered(64, 32), "Gather"),
        (nn.Conv2d(64, 32, 3), (64, 14, 14), torch.arange(8, 40), "Slice"),
        (nn.Conv2d(64, 32, 3), (64, 14, 14), scattered(64, 62), ""),  # 62 channels would not lie in blocks
        (nn.Conv2d(16, 2, 1), (16, 28, 28), scattered(16, 8), ""),  # too little work to be saved
        (nn.Conv1d(24, 32, 9), (24, 50), scattered(24, 8), "Gather"),
    ],
)
def test_a_selection_stays_where_it_pays(layer: nn.Module, shape: tuple[int, ...], kept: Tensor, expected: str) -> None:
    model: Any = picking(layer, kept)
    x = torch.rand(2, *shape)
    with torch.no_grad():
        before = model(x)
        choose_selections(model, (x,))
        assert torch.allclose(model(x), before, atol=1e-5)
    assert (type(model) is type(layer)) == (expected == "")
    assert ("index" in model.state_dict()) == (expected == "Gather")
    assert (model.weight.shape[1] < shape[0]) == bool(expected)


def test_channels_fill_whole_blocks(tmp_path: Path) -> None:
    model = picking(nn.Conv2d(64, 32, 3), scattered(64, 30))
    exported = rc.export_onnx(model, torch.rand(1, 64, 14, 14), tmp_path / "layer.onnx", encoding="dense")
    assert operators(exported) == ["Gather", "Conv"]
    assert next(row for row in exported.tensors if row.name == "weight").shape == (32, 32, 3, 3)
    assert exported.metadata[PRUNED_SHAPES] == {"weight": [32, 30, 3, 3]}


def test_a_run_of_inputs_is_a_slice(tmp_path: Path) -> None:
    model = picking(nn.Linear(784, 300), torch.tensor([pixel for pixel in range(784) if pixel not in BORDER]))
    exported = rc.export_onnx(model, torch.rand(1, 784), tmp_path / "layer.onnx", encoding="dense")
    assert operators(exported) == ["Slice", "Gemm"]
    assert PRUNED_SHAPES not in exported.metadata


@given(total=st.integers(1, 600), share=st.floats(0, 1), uses=st.integers(1, 3000), data=st.data())
def test_what_is_read_is_needed_and_never_slower_than_zeros(total: int, share: float, uses: int, data: Any) -> None:
    kept = scattered(total, max(1, round(share * total)))
    pixels = data.draw(st.sampled_from([0, 1, 49, 784]))
    reading = InputSelection(total, kept, uses * max(pixels, 1), pixels, blocked=data.draw(st.booleans()))
    read, every = fastest_inputs(reading), torch.arange(total)
    assert torch.isin(kept, read).all()
    assert read.tolist() == sorted(set(read.tolist()))
    assert 0 <= int(read[0]) <= int(read[-1]) < total
    for batch in (1, LARGE_BATCH):
        limit = _time(every, reading, batch) * (1 if len(read) == total else 1 - MARGIN)
        assert _time(read, reading, batch) <= limit


def test_what_is_known_about_dead_inputs_outlives_another_encoding(tmp_path: Path) -> None:
    first = rc.export_onnx(perceptron([3, 5]), torch.rand(1, 1, 28, 28), tmp_path / "a.onnx")
    again = reencode(first.path, tmp_path / "b.onnx", Layout("compact"))
    assert again.metadata[PRUNED_SHAPES] == {"1.weight": [300, 782]}


def test_a_wrong_example_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be called with an example input"):
        rc.export_onnx(perceptron([3]), torch.rand(1, 1, 5, 5), tmp_path / "a.onnx")
