"""Batch-norm statistics that are re-estimated: by hand, and where they decide whether a pruned network works."""

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.sparsity.batch_norm_statistics import recalibrate_batch_norm


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(3), (8, 3)),
        (nn.BatchNorm1d(3), (8, 3, 5)),
        (nn.BatchNorm2d(3, momentum=0.01), (8, 3, 5, 5)),
        (nn.BatchNorm3d(3, momentum=None), (8, 3, 2, 2, 2)),
        (nn.SyncBatchNorm(3), (8, 3, 5, 5)),
    ],
)
def test_the_statistics_are_the_mean_over_the_batches(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = nn.Sequential(layer)
    batches = [torch.randn(shape) * (index + 1) + index for index in range(4)]
    model.train()(torch.randn(shape) + 100)  # statistics of something else
    momentum = layer.momentum
    assert recalibrate_batch_norm(model, batches) == 1
    by_channel = [each.transpose(0, 1).flatten(1) for each in batches]
    torch.testing.assert_close(layer.running_mean, torch.stack([each.mean(1) for each in by_channel]).mean(0))
    torch.testing.assert_close(layer.running_var, torch.stack([each.var(1) for each in by_channel]).mean(0))
    assert layer.momentum == momentum


def test_a_layer_behind_another_sees_what_it_sees_in_training() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3), nn.BatchNorm1d(3))
    x = torch.randn(64, 4)
    assert recalibrate_batch_norm(model, [x]) == 2
    hidden = model[:2].train()(x)
    second = model[3](hidden.relu())
    torch.testing.assert_close(model[4].running_mean, second.mean(0))
    torch.testing.assert_close(model[4].running_var, second.var(0))


def test_nothing_else_changes() -> None:
    """Dropout is off, no random number is drawn, weights and gradients and modes stay."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.Linear(6, 2)).train()
    model[3].eval()
    before, random = state_of(model), torch.get_rng_state()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    recalibrate_batch_norm(model, [x, x])
    assert torch.equal(torch.get_rng_state(), random)
    torch.testing.assert_close(model[2].running_mean, model[0](x).mean(0))  # not of a half of them
    after = model.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "2.running_mean",
        "2.running_var",
        "2.num_batches_tracked",
    }
    assert [module.training for module in model] == [True, True, True, False]
    assert all(parameter.grad is None for parameter in model.parameters())


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return self.norm(x * scale)


def test_what_data_loaders_give() -> None:
    x = torch.randn(16, 4)
    found = []
    for batch in (x, (x, torch.zeros(16)), [x, torch.zeros(16)]):
        model = nn.Sequential(nn.BatchNorm1d(4))
        recalibrate_batch_norm(model, [batch])
        found.append(model[0].running_mean)
    named = Named()
    recalibrate_batch_norm(named, [{"x": x, "scale": 1.0}])
    assert all(torch.equal(each, found[0]) for each in (*found, named.norm.running_mean))


def test_a_network_without_batch_norm_takes_no_batch() -> None:
    def batches() -> Iterator[Tensor]:
        raise AssertionError
        yield

    assert recalibrate_batch_norm(nn.Linear(3, 3), batches()) == 0
    assert recalibrate_batch_norm(nn.BatchNorm1d(3, track_running_stats=False), batches()) == 0


@pytest.mark.parametrize(
    ("batches", "kind", "said"),
    [
        ([], InputError, "there is no batch"),
        (
            [torch.randn(8, 3), torch.randn(1, 3)],
            InputError,
            "one value per channel, which has no variance: .*drop_last",
        ),
        ([torch.randn(8, 3), torch.randn(8, 5)], RuntimeError, "running_mean"),
    ],
)
def test_what_fails_leaves_the_old_statistics(batches: list[Tensor], kind: type[Exception], said: str) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3)).train()
    model(torch.randn(8, 3))
    before = state_of(model)
    with pytest.raises(kind, match=said):
        recalibrate_batch_norm(model, batches)
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model[0].training
    assert model[0].momentum == 0.1


# With a reference


def normalised() -> nn.Sequential:
    """A network with statistics of data that are not at hand any more."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3), nn.BatchNorm1d(3)).train()
    for _ in range(50):
        model(2 * torch.randn(64, 4) + 1)
    return model.eval()


def test_the_dense_network_is_left_as_it_is() -> None:
    model = normalised()
    reference, x = deepcopy(model), [torch.randn(64, 4) for _ in range(3)]
    kept = state_of(reference)
    assert recalibrate_batch_norm(model, x, reference) == 2
    for name, value in model.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(value, kept[name])
        assert torch.equal(reference.state_dict()[name], kept[name])


def test_only_what_pruning_changed_is_changed() -> None:
    """Means move by the difference between the networks on the batches, variances by the ratio."""
    model = normalised()
    reference, x = deepcopy(model), torch.randn(64, 4)
    with torch.no_grad():
        model[0].weight[:, :2] = 0
    recalibrate_batch_norm(model, [x], reference)
    own, other, before = model[0](x), reference[0](x), reference[1]
    torch.testing.assert_close(model[1].running_mean, before.running_mean + own.mean(0) - other.mean(0))
    expected = own.var(0) * before.running_var / other.var(0)
    torch.testing.assert_close(model[1].running_var, expected, rtol=1e-3, atol=1e-4)


def test_a_reference_of_another_kind() -> None:
    with pytest.raises(InputError, match="2 batch-norm layers of 9 channels, its reference 1 of 4"):
        recalibrate_batch_norm(normalised(), [torch.randn(8, 4)], nn.BatchNorm1d(4))


# A pruned network


def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return (model.eval()(x).argmax(1) != y).float().mean().item()


def test_a_pruned_network_fails_with_old_statistics_and_works_with_new_ones() -> None:
    torch.manual_seed(0)
    centres = torch.randn(8, 32)
    y = torch.arange(512) % 8
    x = centres[y] + 0.5 * torch.randn(512, 32) + 3  # an offset that batch norm takes away
    layers = [part for _ in range(4) for part in (nn.LazyLinear(64), nn.BatchNorm1d(64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.LazyLinear(8))
    model(x)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        F.cross_entropy(model.train()(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert error(model, x, y) < 0.02
    with torch.no_grad():
        for weight in list(sparse_parameters(model).values())[:-1]:
            weight[weight.abs() < weight.abs().quantile(0.7)] = 0
    assert error(model, x, y) > 0.3
    recalibrate_batch_norm(model, x.split(64))
    assert error(model, x, y) < 0.05
