"""What is left of a network is exported like any other: layers that pick their inputs, groups, gates, graphs, GRUs."""

from pathlib import Path

import pytest
import torch
from exactness import pruned_exactly, random_topology, randomize
from prunable import NETWORKS

from rigl_compress.exporters.export import export_onnx


@pytest.mark.parametrize(
    "name", ["mlp-ReLU", "cnn-padded", "grouped", "split-chunk", "squeeze-excite-view", "gru-flat"]
)
def test_a_pruned_network_is_exported(name: str, tmp_path: Path) -> None:
    """The export compares the outputs itself, for a batch of another size too."""
    torch.manual_seed(1)
    model = randomize(NETWORKS[name].build(), 1)
    topology, example = random_topology(model, 0.8, 1), NETWORKS[name].example()
    pruned = pruned_exactly(model, topology, example)
    assert pruned.plan
    small = export_onnx(pruned.model, example, tmp_path / "small.onnx", encoding="compact")
    topology.apply_to(model)
    whole = export_onnx(model, example, tmp_path / "whole.onnx", encoding="compact")
    assert small.difference < 1e-5
    assert sum(row.total for row in small.tensors) < sum(row.total for row in whole.tensors)
