"""A network as large as ResNet-50."""

from time import perf_counter

import pytest
import torch
from exactness import pruned_exactly, pruned_of

from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.topology import Topology


@pytest.mark.slow
@pytest.mark.parametrize("sparsity", [0.95, 0.99])
def test_resnet50(sparsity: float, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(1)  # at 95 % few units die, and with some seeds none
    model = ModelSpec("resnet-50").build()
    masks = {name: torch.rand(weight.shape) >= sparsity for name, weight in sparse_parameters(model).items()}
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-0.1, 0.1)  # type: ignore[union-attr]
                module.running_var.uniform_(0.02, 0.06)  # type: ignore[union-attr]
                module.bias.uniform_(-0.1, 0.1)
    topology, example = Topology.from_masks(masks), torch.randn(1, 3, 64, 64)
    began = perf_counter()
    report = pruned_of(model, topology, example).report
    with capsys.disabled():
        print(f"\nResNet-50 at {sparsity:.0%}: {perf_counter() - began:.1f} s, {report.architecture}")
    pruned = pruned_exactly(model, topology, example)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    assert pruned.report.after.parameters < pruned.report.before.parameters
