"""Checkpoints that have the active connections alone."""

from pathlib import Path

import pytest
import torch
from torch import nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.training_kernels import training_library
from rigl_compress.sparsity.active_checkpoint import load_active, save_active
from rigl_compress.sparsity.sparsifier import Sparsifier

pytestmark = pytest.mark.skipif(training_library() is None, reason="installed without a C++ compiler")


class Training:
    """A network whose wide layers have no dense memory, on data that depend on the step alone."""

    def __init__(self, optimizer: str = "SGD", kernels: str = "sparse", hidden: int = 300) -> None:
        torch.manual_seed(0)
        with torch.device("meta" if kernels == "sparse" else "cpu"):
            wide = [nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, 300), nn.ReLU()]
        self.model = nn.Sequential(*wide, nn.BatchNorm1d(300), nn.Linear(300, 4))
        options = {"lr": 0.01, "momentum": 0.9} if optimizer == "SGD" else {"lr": 0.01}
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), **options)
        settings = {"sparsity": 0.98, "distribution": "uniform", "dense": ("last",), "total_steps": 60, "interval": 5}
        self.sparse = Sparsifier(self.model, self.optimizer, kernels=kernels, **settings)
        self.taken = 0

    def train(self, steps: int) -> "Training":
        for _ in range(steps):
            x = torch.randn(16, 20, generator=torch.Generator().manual_seed(self.taken))
            self.model(x).square().mean().backward()
            if not self.sparse.step():
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.taken += 1
        return self


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("steps", [0, 5, 6, 13])
def test_a_resumed_training_has_the_same_bits(tmp_path: Path, optimizer: str, steps: int) -> None:
    file = tmp_path / "training.safetensors"
    first = Training(optimizer).train(steps)
    save_active(file, first.model, first.sparse)
    resumed = Training(optimizer)
    load_active(file, resumed.model, resumed.sparse)
    resumed.taken = steps
    whole = first.train(20)
    resumed.train(20)
    assert resumed.sparse.updates == whole.sparse.updates > 2
    assert resumed.sparse.topology == whole.sparse.topology
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


def test_the_file_has_no_dense_weight(tmp_path: Path) -> None:
    training = Training().train(7)
    save_active(tmp_path / "file", training.model, training.sparse)
    active = sum(len(positions) for _, positions in training.sparse.updater.active)
    assert (tmp_path / "file").stat().st_size < 40 * active + 20_000
    assert (tmp_path / "file").stat().st_size < 4 * 300 * 300


def test_other_networks_are_refused(tmp_path: Path) -> None:
    training = Training().train(2)
    save_active(tmp_path / "file", training.model, training.sparse)
    other = Training(hidden=100)
    with pytest.raises(InputError, match="belong to another run"):
        load_active(tmp_path / "file", other.model, other.sparse)
    fewer = Training()
    del fewer.model[4]
    with pytest.raises(InputError, match="is of another model"):
        load_active(tmp_path / "file", fewer.model, fewer.sparse)
    masked = Training(kernels="masked")
    with pytest.raises(InputError, match="does not train on sparse kernels"):
        save_active(tmp_path / "file", masked.model, masked.sparse)
